"""A small HTTP client for the soak: it can leave at any moment, which the usual ones do not offer."""
import asyncio
import json
import time


class Left(Exception):
    """This client left on purpose."""


async def open_request(url, method, path, body, headers=""):
    """Sends a request; gives (reader, writer). `body`: bytes."""
    host, port = url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(f"{method} {path} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n{headers}"
                 f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode() + body)
    return reader, writer


async def read_head(reader):
    """Status and header fields of the response."""
    status = int((await reader.readline()).split()[1])
    fields = {}
    while (line := (await reader.readline()).strip()):
        name, value = line.decode().split(":", 1)
        fields[name.lower()] = value.strip()
    return status, fields


async def pieces(reader, fields):
    """The body as it comes."""
    if fields.get("transfer-encoding") == "chunked":
        while (size := int(await reader.readline(), 16)) > 0:
            yield (await reader.readexactly(size + 2))[:-2]
        return
    while (piece := await reader.read(65536)):
        yield piece


async def close(writer):
    writer.close()
    try:
        await writer.wait_closed()
    except OSError:
        pass


async def call(url, path, body=None, method="POST"):
    """(status, fields, body) of a request that is not streamed. `body`: JSON, or bytes as they are."""
    data = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
    reader, writer = await open_request(url, method, path, data)
    try:
        status, fields = await read_head(reader)
        return status, fields, b"".join([piece async for piece in pieces(reader, fields)])
    finally:
        await close(writer)


async def stream(url, path, body, leave_after=None, enough=lambda: False):
    """(status, times of the events, whether [DONE] or the dialect's last event came). Leaves after some events; goes when
    `enough` says so."""
    reader, writer = await open_request(url, "POST", path, json.dumps(body).encode())
    try:
        status, fields = await read_head(reader)
        times, tail, done = [], b"", False
        if status != 200:
            async for _ in pieces(reader, fields):
                pass
            return status, times, False
        async for piece in pieces(reader, fields):
            tail += piece
            *whole, tail = tail.split(b"\n\n")
            times += [time.monotonic()] * len(whole)
            if leave_after is not None and len(times) > leave_after:
                raise Left
            if enough():
                break
            done = bool(whole) and (b"[DONE]" in whole[-1] or b"message_stop" in whole[-1])
        return status, times, done
    finally:
        await close(writer)
