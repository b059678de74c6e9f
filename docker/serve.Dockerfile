# Serves exported models on CPUs, with the page at http://127.0.0.1:8501. From the root of a checkout:
#     docker build --file=docker/serve.Dockerfile --tag=keras-bert-serve .
#     docker run --rm --publish=127.0.0.1:8501:8501 --volume="$PWD/serving/mrpc:/model:ro" \
#         keras-bert-serve
# Not built by this project, which has no Docker; tests/test_wheel.py runs the lines below.
FROM python:3.11-slim AS build
COPY keras_bert /source/keras_bert
COPY data_tools /source/data_tools
COPY pyproject.toml setup.cfg README.md LICENSE /source/
RUN pip wheel --no-deps --wheel-dir=/wheels /source

FROM python:3.11-slim
COPY --from=build /wheels /wheels
RUN pip install --no-cache-dir "$(echo /wheels/*.whl)[serving,onnx,openvino]"
USER 1000
EXPOSE 8501
HEALTHCHECK CMD ["python", "-c", "import urllib.request as r; r.urlopen('http://127.0.0.1:8501/healthz')"]
ENTRYPOINT ["keras-bert", "serve"]
CMD ["--export_dir=/model", "--host=0.0.0.0", "--port=8501"]
