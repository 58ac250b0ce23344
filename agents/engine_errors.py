"""What an engine's refusals mean. Pure; the texts are those of Docker 20.10 to 28."""

from agents.protocol import ErrorCode

LONGEST_SENTENCE = 500
PORT_TAKEN = ("port is already allocated", "address already in use")
GPU_WORDS = (
    "could not select device driver",
    "nvidia-container",
    "nvml",
    "unknown device",
    "cdi device injection failed",
)
# What no other node can cure. A registry that does not answer is another matter.
NO_SUCH_IMAGE = (
    "manifest unknown",
    "not found",
    "no such image",
    "pull access denied",
    "unauthorized",
    "invalid reference format",
    "no matching manifest",
)


def code_of_start(text: str) -> ErrorCode:
    """Why a container was not started.

    >>> code_of_start('could not select device driver "" with capabilities: [[gpu]]')
    <ErrorCode.GPU_UNAVAILABLE: 'gpu_unavailable'>
    """
    lower = text.lower()
    if any(words in lower for words in GPU_WORDS):
        return ErrorCode.GPU_UNAVAILABLE
    return ErrorCode.START_FAILED


def code_of_pull(text: str) -> ErrorCode:
    """Why an image was not pulled.

    >>> code_of_pull("manifest for x:1 not found: manifest unknown")
    <ErrorCode.IMAGE_UNAVAILABLE: 'image_unavailable'>
    >>> code_of_pull("dial tcp: lookup registry.example.org: no such host")
    <ErrorCode.START_FAILED: 'start_failed'>
    """
    lower = text.lower()
    if any(words in lower for words in NO_SUCH_IMAGE):
        return ErrorCode.IMAGE_UNAVAILABLE
    return ErrorCode.START_FAILED


def is_port_taken(text: str) -> bool:
    return any(words in text for words in PORT_TAKEN)


def sentence(text: str) -> str:
    """An engine's text as one line of bearable length."""
    line = " ".join(text.split())
    return line if len(line) <= LONGEST_SENTENCE else f"{line[:LONGEST_SENTENCE]}…"
