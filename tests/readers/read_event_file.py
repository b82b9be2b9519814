#!/usr/bin/env python3
"""Reads a TensorBoard event file with nothing but the standard library and prints it as JSON lines.

An independent reader for tests: framing, checksums and the protocol buffer wire format are written
here from their public descriptions, none of it shared with the writer. Exits 1 on any damage.
"""
import json
import struct
import sys


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def masked(data):
    crc = crc32c(data)
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def records(data):
    at = 0
    while at < len(data):
        (length,) = struct.unpack_from("<Q", data, at)
        (length_crc,) = struct.unpack_from("<I", data, at + 8)
        if masked(data[at:at + 8]) != length_crc:
            raise ValueError(f"length checksum at byte {at}")
        event = data[at + 12:at + 12 + length]
        (event_crc,) = struct.unpack_from("<I", data, at + 12 + length)
        if len(event) != length or masked(event) != event_crc:
            raise ValueError(f"event checksum at byte {at}")
        yield event
        at += 16 + length


def varint(data, at):
    value = shift = 0
    while True:
        value |= (data[at] & 0x7F) << shift
        shift += 7
        at += 1
        if not data[at - 1] & 0x80:
            return value, at


def fields(data):
    at = 0
    while at < len(data):
        key, at = varint(data, at)
        number, wire = key >> 3, key & 7
        if wire == 0:
            value, at = varint(data, at)
        elif wire == 1:
            value, at = data[at:at + 8], at + 8
        elif wire == 2:
            length, at = varint(data, at)
            value, at = data[at:at + length], at + length
        elif wire == 5:
            value, at = data[at:at + 4], at + 4
        else:
            raise ValueError(f"wire type {wire}")
        if at > len(data):
            raise ValueError("a field runs over the end")
        yield number, value


def event_of(data):
    event = {"step": 0}
    for number, value in fields(data):
        if number == 1:
            (event["wall_time"],) = struct.unpack("<d", value)
        elif number == 2:
            event["step"] = value
        elif number == 3:
            event["file_version"] = value.decode()
        elif number == 5:
            event["values"] = {}
            for kind, entry in fields(value):
                if kind != 1:
                    raise ValueError(f"summary field {kind}")
                parts = dict(fields(entry))
                (event["values"][parts[1].decode()],) = struct.unpack("<f", parts[2])
        else:
            raise ValueError(f"event field {number}")
    return event


if __name__ == "__main__":
    with open(sys.argv[1], "rb") as file:
        for data in records(file.read()):
            print(json.dumps(event_of(data)))
