import numpy as np
import tensorflow as tf


def mnist_dataset(batch_size):
  rng = np.random.default_rng(0)
  prototypes = rng.random((10, 28, 28))
  y_train = rng.integers(0, 10, 2048).astype(np.int64)
  x_train = (prototypes[y_train] + 0.1 * rng.random((2048, 28, 28))).astype(np.float32)
  return tf.data.Dataset.from_tensor_slices((x_train, y_train)).shuffle(2048).repeat().batch(batch_size)


def build_and_compile_cnn_model():
  model = tf.keras.Sequential([
      tf.keras.Input(shape=(28, 28)),
      tf.keras.layers.Reshape(target_shape=(28, 28, 1)),
      tf.keras.layers.Conv2D(32, 3, activation='relu'),
      tf.keras.layers.Flatten(),
      tf.keras.layers.Dense(128, activation='relu'),
      tf.keras.layers.Dense(10),
  ])
  model.compile(
      loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
      optimizer=tf.keras.optimizers.SGD(learning_rate=0.01),
      metrics=['accuracy'])
  return model
