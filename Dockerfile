# The commands on CPU, on NVIDIA GPUs or on a TPU VM:
#
#   docker build -t agent_gspo .
#   docker build -t agent_gspo --build-arg EXTRAS=data,cuda .
#   docker build -t agent_gspo --build-arg EXTRAS=data,tpu .
#   docker run --rm -v "$PWD/runs:/agent_gspo/runs" agent_gspo   # with --gpus=all for cuda
#
# Another command goes behind the name of the image. Downloads and compiled programs are kept in
# runs/cache, so that a second container starts at once.
FROM python:3.12-slim
ARG EXTRAS=data
WORKDIR /agent_gspo
COPY pyproject.toml README.md LICENSE ./
COPY agent_gspo agent_gspo
COPY configs configs
COPY launch launch
RUN pip install --no-cache-dir -e ".[${EXTRAS}]"
ENV AGENT_GSPO_CACHE=/agent_gspo/runs/cache
CMD ["python", "launch/train.py", "--config=tiny", "--workdir=runs/tiny"]
