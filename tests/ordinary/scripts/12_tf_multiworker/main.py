import json
import os

os.environ['CUDA_VISIBLE_DEVICES'] = '-1'

import tensorflow as tf

import mnist_setup

per_worker_batch_size = 64
tf_config = json.loads(os.environ['TF_CONFIG'])
num_workers = len(tf_config['cluster']['worker'])

# The strategy before any op: it configures the collective ops at program startup.
strategy = tf.distribute.MultiWorkerMirroredStrategy()

global_batch_size = per_worker_batch_size * num_workers
multi_worker_dataset = mnist_setup.mnist_dataset(global_batch_size)

with strategy.scope():
  # Model building/compiling need to be within `strategy.scope()`.
  multi_worker_model = mnist_setup.build_and_compile_cnn_model()

model_path = '/tmp/keras-model'
task_type, task_id = tf_config['task']['type'], tf_config['task']['index']


def is_chief():
  return task_type == 'chief' or (task_type == 'worker' and task_id == 0)


def write_filepath(path):
  # Every worker has to save; those that are not the chief, to a place of their own.
  if is_chief():
    return path
  folder = os.path.join(os.path.dirname(path), 'workertemp_' + str(task_id))
  tf.io.gfile.makedirs(folder)
  return os.path.join(folder, os.path.basename(path))


callbacks = [tf.keras.callbacks.BackupAndRestore(backup_dir='/tmp/backup')]
multi_worker_model.fit(multi_worker_dataset, epochs=2, steps_per_epoch=15, callbacks=callbacks)

write_model_path = write_filepath(model_path)
multi_worker_model.save(write_model_path)
if not is_chief():
  tf.io.gfile.rmtree(os.path.dirname(write_model_path))
