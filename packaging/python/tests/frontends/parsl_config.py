"""What Parsl's tests are run with."""

import os

import parsl

import nodectl.parsl


def fresh_config():
    executor = nodectl.parsl.NodectlExecutor(max_workers=4, working_dir=os.getcwd(), pool_options={"cpus": 0.5})
    return parsl.Config(executors=[executor])
