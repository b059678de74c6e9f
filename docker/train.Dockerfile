# Trains on NVIDIA GPUs and on CPUs. From the root of a checkout:
#     docker build --file=docker/train.Dockerfile --tag=keras-bert .
#     docker run --rm --gpus=all --volume="$PWD:/work" keras-bert \
#         classify --train_file=train.csv --init_checkpoint=bert --output_dir=out
# Not built by this project, which has no Docker; tests/test_wheel.py runs the lines below.
FROM python:3.11-slim AS build
COPY keras_bert /source/keras_bert
COPY data_tools /source/data_tools
COPY pyproject.toml setup.cfg README.md LICENSE /source/
RUN pip wheel --no-deps --wheel-dir=/wheels /source

FROM python:3.11-slim
COPY --from=build /wheels /wheels
RUN pip install --no-cache-dir "$(echo /wheels/*.whl)[cuda,arrow,documents,plot,serving]"
WORKDIR /work
ENTRYPOINT ["keras-bert"]
CMD ["--help"]
