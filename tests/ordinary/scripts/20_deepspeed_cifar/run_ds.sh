#!/bin/bash

deepspeed cifar10_deepspeed.py --log-interval 10 --deepspeed --deepspeed_config ds_config.json $@
