"""Byte ranges over HTTP: what arrives, what goes over the wire, and what comes of faults."""

import random
import shutil
import signal
import time
from itertools import pairwise

import pytest

from layerswap_method.errors import LayerSwapError
from layerswap_method.hub.partial import ranges_there
from layerswap_method.hub.ranges import join_ranges, lacking, size, split
from layerswap_method.hub.transfer import check_room
from tests.hub.conftest import TASK, Machine, commit_of
from tests.kills import kill_when
from tests.standins.fetching import LEFT, REQUEST
from tests.standins.hub import running

pytestmark = pytest.mark.slow  # commands in processes of their own, against a server

THREADS = 8


def blobs(machine, name=TASK):
    folder = machine.own_cache / f"models--{name.replace('/', '--')}" / "snapshots"
    return {file.name: file.resolve() for file in folder.glob("*/*.safetensors")}


def source(hub, name=TASK):
    return {file.name: file for file in (hub.root / name / commit_of(name)).glob("*.safetensors")}


def needed(hub):
    return sum(file.stat().st_size - LEFT for file in source(hub).values())


def assert_fetched(machine):
    """Fail unless every byte that was asked for is there, and nothing else."""
    files = source(machine.hub)
    assert blobs(machine).keys() == files.keys()
    for name, blob in blobs(machine).items():
        whole, there = files[name].read_bytes(), blob.read_bytes()
        assert ranges_there(blob) == [(0, len(whole) - LEFT)]
        assert there[:-LEFT] == whole[:-LEFT]
        assert len(there) == len(whole)
        assert not any(there[-LEFT:])


def test_ranges_arrive_and_nothing_else(machine):
    code, output = machine.fetch(TASK, HF_TOKEN="hf_secret")
    assert (code, output) == (0, "")
    assert_fetched(machine)
    assert machine.hub.bytes["store"] == needed(machine.hub)
    tokens = {(address, has_token) for address, *_, has_token in machine.hub.requests}
    assert ("hub", True) in tokens
    assert ("store", True) not in tokens
    machine.hub.forget()
    assert machine.fetch(TASK)[0] == 0
    assert machine.hub.bytes["store"] == 0


@pytest.mark.parametrize(
    ("faults", "variables"),
    [
        ({"broken": 6, "break_after": 100_000}, {}),
        ({"expired": 3}, {}),
        ({"busy": 1}, {}),
        ({"stalled": 2, "stall_s": 4.0}, {"HF_HUB_DOWNLOAD_TIMEOUT": "1"}),
    ],
    ids=lambda value: next(iter(value), ""),
)
def test_faults_of_a_connection_cost_no_byte(faults, variables, machine):
    vars(machine.hub).update(faults)
    code, output = machine.fetch(TASK, **variables)
    assert code == 0, output
    assert_fetched(machine)
    assert machine.hub.bytes["store"] == needed(machine.hub)
    assert getattr(machine.hub, next(iter(faults))) == 0


def test_a_killed_download_goes_on_where_it_was(machine):
    machine.hub.delay_s, kills, drawn = 0.05, 4, random.Random(0)
    for _ in range(kills):
        process, before = machine.start_fetching(TASK), machine.hub.bytes["store"]
        least = before + drawn.randrange(1_000_000, 3_000_000)
        code = kill_when(process, lambda n=least: machine.hub.bytes["store"] >= n)
        assert code == -signal.SIGKILL, "it ended before it could be killed"
        assert machine.hub.bytes["store"] < needed(machine.hub)
    assert machine.fetch(TASK)[0] == 0
    assert_fetched(machine)
    assert machine.hub.bytes["store"] - needed(machine.hub) <= kills * THREADS * REQUEST


def test_a_line_that_was_half_written_claims_nothing(machine):
    assert machine.fetch(TASK)[0] == 0
    blob = next(iter(blobs(machine).values()))
    listed = blob.with_name(f"{blob.name}.ranges")
    lines = listed.read_bytes().splitlines(keepends=True)
    listed.write_bytes(b"".join(lines[:-1]) + lines[-1].split()[0][:-1])
    there = size(ranges_there(blob))
    machine.hub.forget()
    assert machine.fetch(TASK)[0] == 0
    assert_fetched(machine)
    assert machine.hub.bytes["store"] == blob.stat().st_size - LEFT - there > 0


def test_two_processes_fetch_every_byte_once(machine):
    machine.hub.delay_s = 0.02
    processes = [machine.start_fetching(TASK) for _ in range(2)]
    outputs = [process.communicate()[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], outputs
    assert_fetched(machine)
    assert machine.hub.bytes["store"] == needed(machine.hub)


def test_a_file_that_changes_between_header_and_ranges_is_an_error(repositories, tmp_path):
    shutil.copytree(repositories / TASK, tmp_path / "repositories" / TASK)
    with running(tmp_path / "repositories") as hub:
        machine = Machine(tmp_path / "machine", hub)
        assert machine.run("python", "-c", HEADERS, TASK)[0] == 0
        file = source(hub)["model-00002-of-00004.safetensors"]
        with file.open("r+b") as opened:
            opened.seek(-4, 2)
            opened.write(b"zzzz")
        code, output = machine.fetch(TASK)
    assert code == 1
    assert "model-00002-of-00004.safetensors at commit" in output
    assert "is another file than when its size was asked for" in output
    assert "layerswap cache --remove acme/task" in output


HEADERS = """
import sys
from layerswap_method.hub.downloads import Downloads
Downloads().folder(sys.argv[1], None)
"""


def test_a_download_that_never_goes_on_is_given_up_with_a_sentence(machine):
    assert machine.run("python", "-c", HEADERS, TASK)[0] == 0
    machine.hub.broken, machine.hub.break_after = 10**6, 0
    code, output = machine.fetch(TASK)
    assert code == 1
    assert "the download broke off 6 times" in output
    assert "the same command goes on with what is there" in output
    machine.hub.broken = 0
    assert machine.fetch(TASK)[0] == 0
    assert_fetched(machine)


def test_an_interrupted_download_keeps_what_it_has(machine):
    machine.hub.delay_s = 0.05
    process = machine.start_fetching(TASK)
    while machine.hub.bytes["store"] < 2_000_000:
        time.sleep(0.002)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=20)
    there = sum(size(ranges_there(blob)) for blob in blobs(machine).values())
    assert there > 1_000_000


def test_no_room_is_said_before_anything_is_fetched(tmp_path):
    with pytest.raises(LayerSwapError, match=r"needs 1e\+12 GB and the disk has .* HF_HUB_CACHE"):
        check_room(tmp_path, 10**21)
    check_room(tmp_path, 1)


def bytes_of(ranges):
    return {byte for start, end in ranges for byte in range(start, end)}


def test_ranges_are_sets_of_bytes():
    drawn = random.Random(0)
    for _ in range(300):
        ours, theirs = (
            [tuple(drawn.randrange(40) for _ in range(2)) for _ in range(drawn.randrange(6))]
            for _ in range(2)
        )
        assert size(ours) == len(bytes_of(ours))
        assert bytes_of(lacking(ours, theirs)) == bytes_of(ours) - bytes_of(theirs)
        assert split(join_ranges(ours), 7) == [
            (at, min(at + 7, end))
            for start, end in join_ranges(ours)
            for at in range(start, end, 7)
        ]
        joined = join_ranges(ours, 3)
        assert all(second[0] - first[1] > 3 for first, second in pairwise(joined))
        assert bytes_of(joined) >= bytes_of(ours)
