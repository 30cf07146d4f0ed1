"""The recordings are unchanged: each file has its checksum, and there is no other file."""

import hashlib

import pytest

from tests.helpers.paths import GOLDEN

pytestmark = pytest.mark.spread


def listed():
    lines = (GOLDEN / "SHA256SUMS").read_text().splitlines()
    return {name: digest for digest, name in (line.split("  ", 1) for line in lines)}


def test_every_file_is_listed_and_no_other():
    files = {p.relative_to(GOLDEN).as_posix() for p in GOLDEN.rglob("*") if p.is_file()}
    assert files - {"SHA256SUMS"} == set(listed())
    assert len(files) > 500  # a list and a folder that are both empty would agree as well


def test_checksums():
    changed = [
        name
        for name, digest in listed().items()
        if hashlib.sha256((GOLDEN / name).read_bytes()).hexdigest() != digest
    ]
    assert not changed
