"""
Sends notifications: one worker for each configuration whose task is not over.

A worker waits for news of its context, reads the log after what it has sent, and sends that in
order. Each success is stored before the next request, so a process that takes over repeats at most
one. While a worker sends, its name is in the configuration; other processes leave it alone until
that process is dead, or its time is over.
"""

from __future__ import annotations

import asyncio
import importlib
import logging
import random
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from looopy.agent.wait_queue import Watch, watching
from looopy.errors import HostClosed, LooopyError, StoreConflict, StoreUnavailable
from looopy.server.host import AgentHost
from looopy.server.protocols.a2a.push.configs import Config, Configs, Receiver, now
from looopy.server.protocols.a2a.push.options import PushNotifications
from looopy.server.protocols.a2a.push.receivers import Failure, Receivers
from looopy.stores.owner import Owner, provably_dead
from looopy.types.context import AuthContext

if TYPE_CHECKING:
    from looopy.server.protocols.a2a.push.notices import Notice, Notices

_logger = logging.getLogger("looopy")
_LOOK_S: Final = 10.0  # between two looks at a context without a notification
_SCAN_S: Final = 30.0  # between two looks for configurations of other processes
_KEEP_S: Final = 3600.0  # how long a configuration can be read once its task is over
_AT_ONCE: Final = 128  # requests
_MOST_DOUBLINGS: Final = 30
_AGAIN_S: Final = 1.0  # after a failure of the store


class Deliveries:
    """
    The workers of one process.

    Args:
        host: Its stores have the tasks.
    """

    def __init__(self, host: AgentHost, options: PushNotifications) -> None:
        self.options = options
        self.configs = Configs(host.stores, options.key)
        self.receivers = Receivers(options)
        self._host = host
        self._owner: Owner | None = None
        self._mine = ""
        self._workers: dict[str, asyncio.Task[None]] = {}
        self._scanning: asyncio.Task[None] | None = None
        self._sending = asyncio.Semaphore(_AT_ONCE)
        self._closed = False

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Send, within the block; also what an earlier process has left."""
        self._closed = False
        self.start()
        try:
            yield
        finally:
            await self.aclose()

    def start(self) -> None:
        """Begin, if that has not happened; after the end, the next process does."""
        if self._scanning is None and not self._closed:
            self._owner = Owner.new()
            self._mine = self._owner.token()
            self._scanning = asyncio.create_task(self._scan(), name="a2a push")

    async def aclose(self) -> None:
        """Stop in the middle: the next process continues."""
        self._closed = True
        if self._scanning is None:
            return
        tasks = [self._scanning, *self._workers.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.receivers.aclose()
        if self._owner is not None:
            self._owner.retire()
        self._scanning = None

    def watch(self, config: Config) -> None:
        """Send the notifications of a configuration from now on."""
        self.start()
        if not self._closed:
            self._begin(config)

    def _begin(self, config: Config) -> None:
        worker = self._workers.get(config.name)
        if worker is None or worker.done():
            worker = asyncio.create_task(self._work(config.name), name="a2a push")
            self._workers[config.name] = worker
            worker.add_done_callback(lambda _: self._forget(config.name))

    def _forget(self, name: str) -> None:
        worker = self._workers.get(name)
        if worker is not None and worker.done():
            del self._workers[name]

    async def _scan(self) -> None:
        """Take up what other processes began, and remove what is over."""
        while True:
            try:
                async for config in self.configs.all():
                    if config.ended_at is None:
                        self._begin(config)
                    elif config.ended_at < now() - _KEEP_S:
                        await self.configs.delete(config)
            except LooopyError as error:
                _logger.warning("push notifications cannot be read: %s", error)
            await asyncio.sleep(_SCAN_S)

    async def _work(self, name: str) -> None:
        while True:
            try:
                await self._follow(name)
            except (StoreUnavailable, StoreConflict):
                await asyncio.sleep(_AGAIN_S)
            except HostClosed:
                return
            except (
                LooopyError
            ) as error:  # such as too many agents, to end the turn of a dead process
                _logger.warning("push notifications of a task wait: %s", error)
                await asyncio.sleep(_LOOK_S)
            except Exception:
                _logger.exception("push notifications of a task stopped")
                return
            else:
                return

    async def _follow(self, name: str) -> None:
        """Send all notifications of one configuration, to the end of its task."""
        config = await self.configs.load(name)
        if config is None or config.ended_at is not None:
            return
        auth = AuthContext(config.owner, tenant_id=config.tenant)
        stores = self._host.stores_for(auth)
        module = "looopy.server.protocols.a2a.push.notices"
        make: Callable[..., Notices] = (
            await asyncio.to_thread(importlib.import_module, module)
        ).Notices
        notices, read = make(stores, config), config.after
        with watching(stores, config.context_id, Watch(_LOOK_S)) as watch:
            while True:
                config = await self.configs.load(name)
                if config is None or config.ended_at is not None:
                    return
                record = await stores.state.load(config.context_id)
                if not config.is_for(record):
                    await self.configs.delete(config)
                    return
                if (wait_s := self._wait_s(config)) > 0:
                    await asyncio.sleep(min(wait_s, _LOOK_S))
                    continue
                read = max(read, config.after)
                page = await notices.read(read)
                if page.notices:
                    if not await self._send(config, page.notices):
                        continue
                    read = page.upto
                elif page.is_over:
                    with suppress(StoreConflict):
                        await self.configs.save(replace(config, ended_at=now()))
                        return
                elif not page.is_last:
                    read = page.upto
                elif not await notices.settle(self._host, auth):
                    await watch.news()

    def _wait_s(self, config: Config) -> float:
        """How long to leave a configuration alone: it has to wait, or another process sends."""
        holder, wait_s = config.holder, config.due - now()
        if holder in (None, self._mine) or provably_dead(str(holder)):
            return wait_s
        return max(wait_s, config.until - now())

    async def _send(self, config: Config, notices: Sequence[Notice]) -> bool:
        """Send notifications in order; false if not all were taken."""
        receiver = self.configs.receiver(config)
        if receiver is None:
            _logger.warning("a receiver of push notifications cannot be decrypted: another key?")
            await self.configs.save(replace(config, ended_at=now(), gave_up=True))
            return False
        config = await self.configs.save(self._held(config))
        for number, notice in enumerate(notices, 1):
            try:
                async with self._sending:
                    await self.receivers.send(receiver.url, _headers(receiver), notice.body)
            except Failure as failure:
                await self.configs.save(self._failed(config, receiver, failure))
                return False
            sent = replace(config, after=notice.seq, failures=0, due=0.0)
            sent = self._held(sent) if number < len(notices) else replace(sent, holder=None)
            config = await self.configs.save(sent)
        return True

    def _held(self, config: Config) -> Config:
        return replace(config, holder=self._mine, until=now() + 2 * self.options.timeout_s)

    def _failed(self, config: Config, receiver: Receiver, failure: Failure) -> Config:
        failures, options = config.failures + 1, self.options
        host = urlsplit(receiver.url).hostname
        failed = replace(config, failures=failures, holder=None)
        if failure.is_final or failures >= options.attempts:
            _logger.warning("%s gets no more push notifications of its task: %s", host, failure)
            return replace(failed, ended_at=now(), gave_up=True)
        pause_s = min(
            options.pause_s * 2 ** min(failures - 1, _MOST_DOUBLINGS), options.longest_pause_s
        )
        _logger.info("a push notification to %s failed: %s", host, failure)
        return replace(failed, due=now() + pause_s * random.uniform(0.75, 1.0))  # noqa: S311


def _headers(receiver: Receiver) -> list[tuple[str, str]]:
    headers = [("Content-Type", "application/json"), ("User-Agent", "looopy")]
    if receiver.token:
        headers.append(("X-A2A-Notification-Token", receiver.token))
    if receiver.credentials:
        headers.append(("Authorization", f"{receiver.scheme} {receiver.credentials}"))
    return headers
