#!/usr/bin/env python
# coding: utf-8

# # Introduction to Keras for engineers

# In[1]:


import os

import numpy as np

os.environ["KERAS_BACKEND"] = "torch"

# Note that Keras should only be imported after the backend has been configured.
import keras


# ## A first example: A MNIST convnet

# In[2]:


# Load the data and split it between train and test sets
rng = np.random.default_rng(0)
prototypes = rng.integers(0, 200, (10, 28, 28))
y_train, y_test = rng.integers(0, 10, 1200), rng.integers(0, 10, 200)
x_train = prototypes[y_train] + rng.integers(0, 56, (1200, 28, 28))
x_test = prototypes[y_test] + rng.integers(0, 56, (200, 28, 28))

x_train = np.expand_dims(x_train.astype("float32") / 255, -1)
x_test = np.expand_dims(x_test.astype("float32") / 255, -1)
print("x_train shape:", x_train.shape)
print(x_train.shape[0], "train samples")
print(x_test.shape[0], "test samples")


# In[3]:


# Model parameters
num_classes = 10
input_shape = (28, 28, 1)

model = keras.Sequential(
    [
        keras.layers.Input(shape=input_shape),
        keras.layers.Conv2D(16, kernel_size=(3, 3), activation="relu"),
        keras.layers.MaxPooling2D(pool_size=(2, 2)),
        keras.layers.Conv2D(32, kernel_size=(3, 3), activation="relu"),
        keras.layers.GlobalAveragePooling2D(),
        keras.layers.Dropout(0.5),
        keras.layers.Dense(num_classes, activation="softmax"),
    ]
)
model.summary()


# In[4]:


model.compile(
    loss=keras.losses.SparseCategoricalCrossentropy(),
    optimizer=keras.optimizers.Adam(learning_rate=1e-3),
    metrics=[keras.metrics.SparseCategoricalAccuracy(name="acc")],
)

batch_size = 32
epochs = 3
callbacks = [
    keras.callbacks.ModelCheckpoint(filepath="model_at_epoch_{epoch}.keras"),
    keras.callbacks.EarlyStopping(monitor="val_loss", patience=2),
]
model.fit(x_train, y_train, batch_size=batch_size, epochs=epochs, validation_split=0.15, callbacks=callbacks)
score = model.evaluate(x_test, y_test, verbose=0)
print("Test loss, accuracy:", score)


# In[5]:


model.save("final_model.keras")
model = keras.saving.load_model("final_model.keras")
predictions = model.predict(x_test)
predictions.shape
