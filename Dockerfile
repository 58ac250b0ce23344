# The server: web, worker and beat are the same image with different commands (docker-compose.yml).
# The agent has an image of its own (agents/Dockerfile).
FROM python:3.13-slim AS environment

COPY requirements/server.lock /tmp/server.lock
RUN python -m venv /opt/headrace \
    && /opt/headrace/bin/pip install --no-cache-dir --require-hashes --compile -r /tmp/server.lock

FROM python:3.13-slim

ENV PATH=/opt/headrace/bin:$PATH PYTHONUNBUFFERED=1 STATIC_ROOT=/srv/static
COPY --from=environment /opt/headrace /opt/headrace
WORKDIR /srv/headrace
COPY manage.py pyproject.toml ./
COPY agents/__init__.py agents/protocol.py agents/
COPY billing billing
COPY portal portal
COPY scheduler scheduler
COPY static static
COPY templates templates

# Static files need settings, yet none of their secrets; nothing of this value is kept.
RUN python -m compileall -q . \
    && SECRET_KEY=only-while-building python manage.py collectstatic --noinput --verbosity 0 \
    && useradd --system --no-create-home headrace \
    && mkdir /srv/beat && chown headrace /srv/beat

USER headrace
EXPOSE 8000
CMD ["uvicorn", "portal.asgi:application", "--host", "0.0.0.0", "--port", "8000", \
     "--proxy-headers", "--forwarded-allow-ips", "*", "--no-server-header", \
     "--timeout-graceful-shutdown", "25"]
