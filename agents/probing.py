"""Whether something answers on a port."""

import asyncio

CONNECT_SECONDS = 1.0
# Docker's own proxy accepts connections to a port on which nothing listens, and drops them as
# soon as it has found out. A real server waits for its client, or speaks.
LINGER_SECONDS = 0.1


async def answers(address: str, port: int) -> bool:
    """True when a connection is accepted and not dropped at once."""
    try:
        async with asyncio.timeout(CONNECT_SECONDS):
            reader, writer = await asyncio.open_connection(address, port)
    except OSError:
        return False
    try:
        async with asyncio.timeout(LINGER_SECONDS):
            first = await reader.read(1)
    except TimeoutError:
        return True
    except OSError:
        return False
    finally:
        writer.close()
    return bool(first)
