"""Artifacts over HTTP: whole, in ranges, and not again if the client has them."""

import random

import pytest
from tests.server.test_api import serving

DATA = bytes(range(256)) * 300
CONTENTS = {
    "file": DATA,
    "text": "Grüße, 世界",
    "data": {"name": "Grüße", "rows": [1, 2]},
    "table": [{"a": n, "b": "x" * 20} for n in range(5000)],
    "empty": b"",
}


@pytest.fixture
async def world():
    async with serving() as (client, host):
        await client.post("/contexts/c/turns", json={"message": "Hi."})
        for name, content in CONTENTS.items():
            columns = {"a": "integer", "b": "string"} if name == "table" else None
            await host.stores.artifacts.save("c", name, content, columns=columns)
        yield client, host


@pytest.mark.parametrize("name", CONTENTS)
async def test_length_tag_and_ranges_fit_the_content_of_each_kind(world, name):
    """The pieces of a content make the content; HEAD has the headers of GET."""
    client, _ = world
    path = f"/contexts/c/artifacts/{name}"
    whole = await client.get(path)
    size = len(whole.content)
    assert whole.headers["content-length"] == str(size)
    assert whole.headers["accept-ranges"] == "bytes"
    head = await client.head(path)
    assert (head.status_code, head.content) == (200, b"")
    assert {**head.headers} == {**whole.headers}
    if not size:
        return
    for asked, first, end in (
        ("0-0", 0, 1),
        ("1-3", 1, min(4, size)),
        (f"{size // 2}-", size // 2, size),
        ("-2", max(0, size - 2), size),
        (f"-{size + 9}", 0, size),
        (f"0-{size + 9}", 0, size),
        ("3-" + "9" * 18, 3, size),
    ):
        part = await client.get(path, headers={"Range": f"bytes={asked}"})
        assert part.status_code == 206
        assert part.content == whole.content[first:end], asked
        assert part.headers["content-range"] == f"bytes {first}-{end - 1}/{size}"
        assert part.headers["content-length"] == str(end - first)
        assert part.headers["etag"] == whole.headers["etag"]


async def test_range_over_the_parts_of_a_large_artifact(tmp_path):
    """SQLite keeps large contents in parts of 8 MiB, and a range may span two of them."""
    large = random.Random(1).randbytes(8 * 2**20 + 10)
    async with serving(url=f"sqlite:///{tmp_path}/app.db") as (client, host):
        await client.post("/contexts/c/turns", json={"message": "Hi."})
        await host.stores.artifacts.save("c", "a", large)
        for first, last in ((8 * 2**20 - 3, 8 * 2**20 + 2), (5, len(large) - 6)):
            asked = {"Range": f"bytes={first}-{last}"}
            part = await client.get("/contexts/c/artifacts/a", headers=asked)
            assert part.content == large[first : last + 1]


@pytest.mark.parametrize(
    "said", ["bytes=2-1", "bytes=-", "bytes=a-b", "rows=0-1", "bytes=0-1,3-4", "bytes=0-1 2"]
)
async def test_a_malformed_range_or_several_do_not_count(world, said):
    """The answer is the whole content."""
    client, _ = world
    answer = await client.get("/contexts/c/artifacts/file", headers={"Range": said})
    assert (answer.status_code, answer.content) == (200, DATA)


@pytest.mark.parametrize(
    ("name", "said"),
    [("file", f"bytes={len(DATA)}-"), ("file", "bytes=-0"), ("empty", "bytes=0-")],
)
async def test_a_range_past_the_end_is_refused_with_the_size(world, name, said):
    """416, with the size in `Content-Range`."""
    client, _ = world
    answer = await client.get(f"/contexts/c/artifacts/{name}", headers={"Range": said})
    assert answer.status_code == 416
    assert answer.json()["error"]["code"] == "range_not_satisfiable"
    size = len(DATA) if name == "file" else 0
    assert answer.headers["content-range"] == f"bytes */{size}"


async def test_a_client_that_has_the_content_does_not_get_it_again(world):
    """304 for the tag, in each form that a client may send; the content of any other is sent."""
    client, host = world
    path = "/contexts/c/artifacts/file"
    tag = (await client.get(path)).headers["etag"]
    for said in (tag, f"W/{tag}", f'"x", {tag}', "*"):
        for method in ("GET", "HEAD"):
            answer = await client.request(method, path, headers={"If-None-Match": said})
            assert (answer.status_code, answer.content) == (304, b"")
            assert answer.headers["etag"] == tag
    assert (await client.get(path, headers={"If-None-Match": '"x"'})).status_code == 200
    await host.stores.artifacts.save("c", "file", b"new")
    answer = await client.get(path, headers={"If-None-Match": tag})
    assert (answer.status_code, answer.content) == (200, b"new")


async def test_a_part_continues_only_the_content_that_it_is_of(world):
    """`If-Range` with another tag, or with a date: the whole content."""
    client, _ = world
    path, asked = "/contexts/c/artifacts/file", {"Range": "bytes=5-"}
    tag = (await client.get(path)).headers["etag"]
    for said, status in ((tag, 206), ('"x"', 200), (f"W/{tag}", 200), ("Sat, 28 Nov 2026", 200)):
        answer = await client.get(path, headers=asked | {"If-Range": said})
        assert answer.status_code == status, said


async def test_a_version_that_is_being_built_has_no_tag_and_is_not_the_default(world):
    """Its content grows: no part of it can be continued."""
    client, host = world
    store, path = host.stores.artifacts, "/contexts/c/artifacts/file"
    await store.open("c", "file", media_type="text/plain")
    await store.append("c", "file", b"so far")
    assert (await client.get(path)).content == DATA
    answer = await client.get(f"{path}?version=2", headers={"Range": "bytes=0-1"})
    assert (answer.status_code, answer.content) == (200, b"so far")
    head = await client.head(f"{path}?version=2")
    for one in (answer, head):
        assert not {"etag", "accept-ranges", "content-length"} & {*one.headers}
    await store.open("c", "first", media_type="text/plain")
    assert (await client.get("/contexts/c/artifacts/first")).status_code == 200
