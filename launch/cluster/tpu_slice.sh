#!/usr/bin/env bash
# Runs on a TPU pod slice: requests it as a queued resource, installs on each of its machines, starts
# the same command on all of them (JAX finds the others by itself), and deletes the slice.
#
#   ZONE=us-west4-a TYPE=v5litepod-16 RUNTIME=v2-alpha-tpuv5-lite SHARED=/mnt/shared REPOSITORY=URL \
#     launch/cluster/tpu_slice.sh NAME --config=configs/qwen_gsm8k.py --config.mesh.fsdp=-1 \
#     --config.learner.micro_batch_size=16
#
# SHARED is a folder that all machines see (Filestore, NFS): checkpoints are written by all of them.
# A preempted slice ends the command; the same command requests one again and resumes the run.
set -euo pipefail

name=${1:?a name for the slice and its run}
shift
: "${ZONE:?}" "${TYPE:?}" "${RUNTIME:?}" "${SHARED:?}" "${REPOSITORY:?}"

gcloud compute tpus queued-resources create "$name" --node-id="$name" --zone="$ZONE" \
  --accelerator-type="$TYPE" --runtime-version="$RUNTIME"
trap 'gcloud compute tpus queued-resources delete "$name" --zone="$ZONE" --force --quiet' EXIT

state() {
  gcloud compute tpus queued-resources describe "$name" --zone="$ZONE" --format='value(state.state)'
}
until [ "$(state)" = ACTIVE ]; do
  case $(state) in FAILED | SUSPENDED) echo "the slice is $(state)" >&2; exit 1 ;; esac
  sleep 30
done

printf -v arguments ' %q' "$@"
gcloud compute tpus tpu-vm ssh "$name" --zone="$ZONE" --worker=all --command="set -e
  [ -d agent_gspo ] || git clone $REPOSITORY agent_gspo
  cd agent_gspo
  # uv takes a Python that fits, or fetches one: images ship 3.10 as well.
  [ -x .venv/bin/python ] || { python3 -m pip install --quiet --user uv &&
    python3 -m uv venv --seed --python '>=3.11,<3.13' .venv; }
  . .venv/bin/activate
  pip install --quiet -e '.[data,tpu]'  # data: the benchmarks, GSM8K among them
  exec python launch/train.py --workdir=$SHARED/$name$arguments"
