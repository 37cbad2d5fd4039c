#!/bin/sh
# Continues from the newest state in the checkpoint directory, if there is one.
set -e
cd "${SMLAUNCH_CHECKPOINTS:-/opt/ml/checkpoints}"
exec gmx mdrun -s "$SM_CHANNEL_SYSTEM/topol.tpr" -deffnm run -cpi run.cpt -cpt 15 -noappend \
    -nb gpu -pme gpu -bonded gpu -update gpu -ntmpi 1 -ntomp 8
