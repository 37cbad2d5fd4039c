"""The training of train_ddp.py with SageMaker's data-parallel library as its process group.

    smlaunch run entrypoints/train_smddp.py --strategy smddp --hosts 2 --instance-type ml.p4d.24xlarge \\
        --input train=s3://bucket/train/ --input test=s3://bucket/test/

Importing the library registers the backend, which is all that differs. It is in AWS's images of PyTorch up to
2.2 and nowhere else, and runs on P4d and P4de: nobody has run this file outside of them, and its authors not
at all.
"""

from __future__ import annotations

import smdistributed.dataparallel.torch.torch_smddp  # noqa: F401  registers "smddp"
from train_ddp import main

if __name__ == "__main__":
    main(backend="smddp")
