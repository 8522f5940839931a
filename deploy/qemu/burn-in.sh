#!/bin/sh
# A burn-in program of the virtual machine, whose GPUs are not real: it takes long enough for readings to be had meanwhile,
# and tells a figure. See worker/agent's Programs.
sleep 7
echo '{"seconds": 7}'
