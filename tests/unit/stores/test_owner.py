"""A holder is dead only when that is proved: by this host, about one process and no other."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from looopy.stores.owner import Owner, provably_alive, provably_dead, ttl_of

pytestmark = pytest.mark.skipif(
    not Path("/proc/self/ns/pid").exists(), reason="without /proc nobody proves a death"
)

HOLD = """
import sys
from looopy.stores.owner import Owner
print(Owner.new().token(), flush=True)
sys.stdin.read()
"""
TELL = """
import os, sys
from looopy.stores.owner import Owner
owners = [Owner.new() for _ in range(3)]
print(*(owner.token(10.0) for owner in owners), flush=True)
for order in sys.stdin:
    if order.strip() == "close":
        os.closerange(3, 256)
        kept = open(sys.argv[1], "w+")
        other = open(sys.argv[1] + "2", "w+")
    else:
        owners[int(order)].retire()
    print("done", flush=True)
"""
FORK = """
import os, sys
from looopy.stores.owner import Owner, provably_dead
owner = Owner.new()
token = owner.token()
pid = os.fork()
if pid == 0:
    os._exit(10 * provably_dead(token) + (owner.token() != token))
sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""


@pytest.fixture
def child():
    with subprocess.Popen(
        [sys.executable, "-c", HOLD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        yield process
        process.kill()


@pytest.fixture
def teller(tmp_path):
    """Another process with three owners: retires those whose number it is told."""
    with subprocess.Popen(
        [sys.executable, "-c", TELL, tmp_path / "file"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        yield process
        process.kill()


def told(process, order):
    """Have the other process obey."""
    process.stdin.write(f"{order}\n")
    process.stdin.flush()
    assert process.stdout.readline() == "done\n"


def test_an_owner_of_this_process_lives_until_it_is_retired():
    """Two agents of one process can tell whether the other still works."""
    owner = Owner.new()
    assert not provably_dead(owner.token())
    owner.retire()
    assert provably_dead(owner.token())
    owner.retire()


def test_two_owners_of_one_process_are_two():
    """The nonce tells them apart: the end of one says nothing about the other."""
    first, second = Owner.new(), Owner.new()
    assert first.token() != second.token()
    first.retire()
    assert not provably_dead(second.token())
    second.retire()


def test_a_living_process_is_not_dead(child):
    """Not even when it does nothing, or is stopped and renews nothing."""
    token = child.stdout.readline().strip()
    assert not provably_dead(token)
    child.send_signal(signal.SIGSTOP)
    assert not provably_dead(token)
    child.send_signal(signal.SIGCONT)


def test_a_killed_process_is_dead_as_a_zombie_and_when_it_is_gone(child):
    """Before its parent collects it, it is in the process table and runs nothing any more."""
    token = child.stdout.readline().strip()
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    stat = Path(f"/proc/{child.pid}/stat").read_text(encoding="ascii")
    assert stat.rpartition(")")[2].split()[0] == "Z"
    assert provably_dead(token)
    child.wait()
    assert provably_dead(token)


def test_another_process_under_the_same_id_is_no_sign_of_life(child):
    """Process ids are used again: the start time tells the two apart."""
    host, pid, start, nonce = child.stdout.readline().strip().split("/")
    assert not provably_dead(f"{host}/{pid}/{start}/{nonce}")
    assert provably_dead(f"{host}/{pid}/{int(start) - 1}/{nonce}")


def test_a_past_life_of_this_very_process_id_is_dead():
    """In a container every process may have the same id: this one is not its predecessor."""
    host, pid, start, nonce = Owner.new().token().split("/")
    assert int(pid) == os.getpid()
    assert provably_dead(f"{host}/{pid}/{int(start) - 1}/{nonce}")


def test_a_process_of_another_host_is_not_proved_dead(child):
    """There the same number is another process: only the expiry of the lease tells."""
    token = child.stdout.readline().strip()
    child.kill()
    child.wait()
    host, rest = token.split("/", 1)
    boot, namespace = host.rsplit(".", 1)
    assert provably_dead(token)
    for other in (f"{boot}.{int(namespace) + 1}", f"other.{namespace}", f"{boot}", ""):
        assert not provably_dead(f"{other}/{rest}")


@pytest.mark.parametrize(
    "change",
    [
        lambda _parts: "",
        lambda _parts: "somebody",
        lambda parts: "/".join(parts[:3]),
        lambda parts: "/".join([*parts, "more"]),
        lambda parts: "/".join([parts[0], "", parts[2], parts[3]]),
        lambda parts: "/".join([parts[0], "-1", parts[2], parts[3]]),
        lambda parts: "/".join([parts[0], "\u00b2", parts[2], parts[3]]),
        lambda parts: "/".join([parts[0], "9" * 30, parts[2], parts[3]]),
        lambda parts: "/".join([parts[0], parts[1], "", parts[3]]),
    ],
)
def test_a_holder_that_cannot_be_read_is_not_proved_dead(change):
    """What another version or another program wrote waits for its expiry."""
    owner = Owner.new()
    parts = owner.token().split("/")
    owner.retire()
    assert not provably_dead(change(parts))


def test_an_owner_inherited_by_a_fork_is_the_parents():
    """The child of a fork neither proves its parent dead nor speaks for it."""
    subprocess.run([sys.executable, "-c", FORK], check=True)


def test_owners_of_another_process_are_distinguished(teller):
    """One that is retired is dead at once, though its process lives; the others are alive."""
    tokens = teller.stdout.readline().split()
    assert [provably_alive(token) for token in tokens] == [True] * 3
    told(teller, 1)
    assert [provably_alive(token) for token in tokens] == [True, False, True]
    assert [provably_dead(token) for token in tokens] == [False, True, False]


def test_a_process_that_is_stopped_is_neither_alive_nor_dead(teller):
    """It may never go on: there the lease decides."""
    token = teller.stdout.readline().split()[0]
    teller.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, teller.pid, os.WSTOPPED | os.WNOWAIT)
    assert not provably_alive(token)
    assert not provably_dead(token)
    teller.send_signal(signal.SIGCONT)


def test_a_process_that_closed_our_descriptors_is_neither_alive_nor_dead(teller, tmp_path):
    """As one that turns itself into a daemon; its files may then have the numbers of ours."""
    tokens = teller.stdout.readline().split()
    told(teller, "close")
    told(teller, 0)
    assert [provably_alive(token) for token in tokens] == [False] * 3
    assert [provably_dead(token) for token in tokens] == [False] * 3
    assert (tmp_path / "file").read_bytes() == b""


def test_a_process_of_another_user_is_not_proved_dead(teller):
    """Another user's process: it runs, and that is all that is known."""
    host, pid, start, name = teller.stdout.readline().split()[0].split("/")
    nonce, where, _ = name.split(";")
    fd, place = where.split(".")
    for other in ("", "0.0", f"99.{place}", f"{fd}.{'9' * 30}", f"{fd}.-1", "x.y"):
        token = f"{host}/{pid}/{start}/{nonce};{other}"
        assert not provably_alive(token)
        assert not provably_dead(token)


def test_a_place_in_the_register_is_used_again():
    """A process that takes turns for years needs no more than its turns at a time."""
    places = set()
    for _ in range(20_000):
        owner = Owner.new()
        places.add(owner.where)
        owner.retire()
    assert len(places) < 100
    assert "" not in places


def test_more_owners_than_there_is_room_for_are_known_here_alone():
    """Of those, another process proves only the death of the whole process."""
    owners = [Owner.new() for _ in range(8300)]
    without = [owner for owner in owners if not owner.where]
    assert without
    assert all(provably_alive(owner.token()) for owner in without[:3])
    for owner in owners:
        owner.retire()
    assert provably_dead(without[0].token())


def test_a_holder_has_the_duration_of_its_lease():
    """For those who watch it with another configuration; what makes no sense is not said."""
    owner = Owner.new()
    assert ttl_of(owner.token(2.5)) == 2.5
    for unsaid in (owner.token(), "", "somebody", "a/1/1/n;;x", "a/1/1/n;;-1", "a/1/1/n;;inf"):
        assert ttl_of(unsaid) is None
    owner.retire()
