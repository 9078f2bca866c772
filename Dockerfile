# An image with Spurless for the CPU. Build it with "make docker", and audit a model in the current folder with
#   docker run --rm --volume "$PWD:/work" spurless audit mine.safetensors --data birds/ --model torchvision:resnet18
ARG PYTHON=3.12
FROM python:${PYTHON}-slim

# The default build of torch for Linux contains CUDA libraries of several GB. Pass the options of pip that select a
# CPU-only build, such as the index that the installation page of PyTorch names, and the mirror of your company:
#   make docker PIP_INDEX_ARGS="--extra-index-url URL"
ARG PIP_INDEX_ARGS=""
# extras, such as [timm,text]
ARG EXTRAS=""

WORKDIR /build
COPY pyproject.toml README.md LICENSE ./
COPY src src
RUN pip install --no-cache-dir ${PIP_INDEX_ARGS} ".${EXTRAS}" && rm -rf /build

RUN useradd --create-home spurless && mkdir /work && chown spurless /work
USER spurless
WORKDIR /work
ENTRYPOINT ["spurless"]
CMD ["--help"]
