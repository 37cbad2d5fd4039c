"""What is not ours behind the endpoint's door: moto, in a process of its own (extra ``smlaunch[moto]``).

fallback.py        the endpoint's side, stdlib only: starts the process for the first request, forwards to it
process.py         the process: moto's own applications, one for each service, behind a small door
clients.py         the clients that Step Functions works with, signed as its role, for the endpoint's one port
step_functions.py  what is put into moto's interpreter: our tasks, and the repairs
sagemaker_tasks.py the integration ``arn:aws:states:::sagemaker:create...Job``, with and without ``.sync``
repairs.py         moto's faults that were met, each repaired from outside, by name and version

moto keeps its state in memory and for the whole process, hooks itself into botocore and takes 190 MB for its
interpreter. So it never runs in the client's process or the endpoint's, and each endpoint has its own.
"""
