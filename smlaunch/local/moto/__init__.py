"""Services that the endpoint does not implement: moto, in a process of its own (extra ``smlaunch[moto]``).

- forwarder.py: the endpoint's side, stdlib only; starts the process for the first of these requests.
- server_process.py: the process: moto's applications, one for each service, behind a check of a token.
- role_clients.py: boto3 clients for tasks of Step Functions, which sign as the state machine's role.
- step_functions.py: installs tasks, patches and clients into moto's interpreter.
- sagemaker_tasks.py: the integration ``arn:aws:states:::sagemaker:create...Job``, with and without ``.sync``.
- moto_patches.py: patches for moto's bugs, with the version that they were seen in.

moto keeps its state in global variables, hooks itself into botocore, and its interpreter needs 190 MB. So it
never runs in the process of the client or of the endpoint, and each endpoint has its own.
"""
