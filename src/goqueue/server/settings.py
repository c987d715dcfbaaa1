"""The kinds of values that settings have: how each is parsed, which values are allowed, how it is shown.

A value is text from the environment or a flag, or a TOML value. Either way `parse` returns the value that the code
uses, or raises a `ValueError` that says what to write instead. `show` returns a value with a JSON type, which `parse`
accepts again.
"""

import re
from abc import ABC, abstractmethod
from contextlib import suppress
from typing import Any, NamedTuple

from goqueue.errors import InvalidTopic
from goqueue.times import format_duration, parse_duration
from goqueue.topics.config import TopicConfig

_SIZE = re.compile(r"(\d{1,15}) ?(B|KiB|MiB|GiB|TiB)?", re.ASCII)
_UNITS = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
_NAME_OR_IPV4 = re.compile(r"[A-Za-z0-9._-]+", re.ASCII)
_IPV6 = re.compile(r"\[([0-9A-Fa-f:.]+(?:%[A-Za-z0-9._-]+)?)\]", re.ASCII)
_PORT = re.compile(r"\d{1,5}", re.ASCII)
_PORT_MAX = 65_535
_URL = re.compile(r"https?://[^/\s]+(/\S*)?", re.ASCII)
_SWITCH = {"true": True, "on": True, "yes": True, "1": True, "false": False, "off": False, "no": False, "0": False}
_ETCD = re.compile(r"etcd://([^/\s]+)(/[A-Za-z0-9._/-]*)?", re.ASCII)
_ETCD_PORT = 2379
_RACK = re.compile(r"[A-Za-z0-9._-]{0,64}", re.ASCII)
_ORIGIN = re.compile(r"https?://[^/\s,*]+|\*", re.ASCII)


class Kind(ABC):
    """A set of values."""

    allowed: str

    def parse(self, raw: object) -> Any:
        """The value, or a `ValueError` that says what it must be."""
        try:
            return self._parse(raw)
        except ValueError:
            raise ValueError(f"must be {self.allowed}") from None

    def show(self, value: Any) -> object:
        """The value as a user would write it."""
        return value

    @abstractmethod
    def _parse(self, raw: object) -> object: ...


class Address(NamedTuple):
    """An address to listen on. With port 0 the system chooses one."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class HostPort(Kind):
    """An address to listen on; `off` if the setting allows it."""

    def __init__(self, *, can_be_off: bool = False) -> None:
        self._can_be_off = can_be_off
        self.allowed = f"HOST:PORT, such as 127.0.0.1:7000 or [::1]:7000{', or off' if can_be_off else ''}"

    def show(self, value: Address | None) -> str:
        return "off" if value is None else str(value)

    def _parse(self, raw: object) -> Address | None:
        return None if self._can_be_off and raw == "off" else _address(_text(raw))


class FileLocation(NamedTuple):
    """A directory with the metadata log of the nodes of this machine."""

    directory: str

    def __str__(self) -> str:
        return f"file:{self.directory}"


class EtcdLocation(NamedTuple):
    """The members of etcd, and the prefix of the keys of one cluster."""

    endpoints: tuple[Address, ...]
    prefix: str

    def __str__(self) -> str:
        return f"etcd://{','.join(map(str, self.endpoints))}{self.prefix}"


MetadataLocation = FileLocation | EtcdLocation


class LogLocation(Kind):
    """Where the metadata log of a cluster is; `off` for a node that is in no cluster."""

    allowed = "file:DIR, etcd://HOST:PORT[,HOST:PORT...]/PREFIX, or off"

    def show(self, value: MetadataLocation | None) -> str:
        return "off" if value is None else str(value)

    def _parse(self, raw: object) -> MetadataLocation | None:
        text = _text(raw)
        if text == "off":
            return None
        if text.startswith("file:"):
            return FileLocation(Directory().parse(text.removeprefix("file:")))
        match = _ETCD.fullmatch(text)
        if not match:
            raise ValueError(raw)
        endpoints = [
            host if _PORT.fullmatch(host.rpartition(":")[2]) else f"{host}:{_ETCD_PORT}" for host in match[1].split(",")
        ]
        prefix = (match[2] or "").rstrip("/")
        return EtcdLocation(tuple(_address(endpoint) for endpoint in endpoints), prefix or "/goqueue")


class Rack(Kind):
    """The name of a rack or a zone; empty for none."""

    allowed = "up to 64 letters, digits, dots, dashes and underscores"

    def _parse(self, raw: object) -> str:
        if not _RACK.fullmatch(_text(raw)):
            raise ValueError(raw)
        return _text(raw)


class Secret(Kind):
    """Text that is not shown."""

    allowed = "text"

    def show(self, value: str) -> str:
        return "***" if value else ""

    def _parse(self, raw: object) -> str:
        return _text(raw)


class WholeNumber(Kind):
    """A whole number within bounds."""

    def __init__(self, least: int, most: int) -> None:
        self._range = range(least, most + 1)
        self.allowed = f"a whole number from {least} to {most}"

    def _parse(self, raw: object) -> int:
        return _within(self._range, int(raw) if isinstance(raw, str) else raw)


class Size(Kind):
    """A number of bytes within bounds, with or without a unit."""

    def __init__(self, least: int, most: int) -> None:
        self._range = range(least, most + 1)
        self.allowed = f"a size from {self.show(least)} to {self.show(most)}, such as 512KiB or 64MiB"

    def show(self, value: int) -> str:
        unit = next(unit for unit, factor in reversed(_UNITS.items()) if value % factor == 0 or factor == 1)
        return f"{value // _UNITS[unit]}{unit}"

    def _parse(self, raw: object) -> int:
        if isinstance(raw, str):
            match = _SIZE.fullmatch(raw)
            if not match:
                raise ValueError(raw)
            raw = int(match[1]) * _UNITS[match[2] or "B"]
        return _within(self._range, raw)


class Duration(Kind):
    """A duration within bounds, in nanoseconds. Its text needs a unit: a bare number would be ambiguous."""

    def __init__(self, least_ns: int, most_ns: int) -> None:
        self._range = range(least_ns, most_ns + 1)
        self.allowed = f"a duration from {self.show(least_ns)} to {self.show(most_ns)}, such as 250ms, 30s or 1h30m"

    def show(self, value: int) -> str:
        return format_duration(value)

    def _parse(self, raw: object) -> int:
        return _within(self._range, parse_duration(_text(raw)))


class OneOf(Kind):
    """One of a few words."""

    def __init__(self, *words: str) -> None:
        self._words = words
        self.allowed = f"one of {', '.join(words)}"

    def _parse(self, raw: object) -> str:
        word = _text(raw).lower()
        if word not in self._words:
            raise ValueError(raw)
        return word


class Directory(Kind):
    """The path of a directory."""

    allowed = "the path of a directory"

    def _parse(self, raw: object) -> str:
        path = _text(raw)
        if not path or not path.isprintable():
            raise ValueError(raw)
        return path


class Switch(Kind):
    """On or off."""

    allowed = "true or false"

    def _parse(self, raw: object) -> bool:
        if isinstance(raw, bool):
            return raw
        if isinstance(raw, str) and raw.lower() in _SWITCH:
            return _SWITCH[raw.lower()]
        raise ValueError(raw)


class TextOrOff(Kind):
    """Text of some form, or `off`, which is None."""

    def show(self, value: str | None) -> str:
        return "off" if value is None else value

    def _parse(self, raw: object) -> str | None:
        text = _text(raw)
        if text == "off":
            return None
        if not self._is_valid(text):
            raise ValueError(raw)
        return text

    @abstractmethod
    def _is_valid(self, text: str) -> bool: ...


class FilePath(TextOrOff):
    """The path of a file, or `off`."""

    allowed = "the path of a file, or off"

    def _is_valid(self, text: str) -> bool:
        return bool(text) and not text.endswith("/") and text.isprintable()


class Url(TextOrOff):
    """A URL, or `off`."""

    allowed = "a URL such as http://127.0.0.1:4318/v1/traces, or off"

    def _is_valid(self, text: str) -> bool:
        return _URL.fullmatch(text) is not None


class Origins(Kind):
    """CORS origins; as text, separated by commas."""

    allowed = "origins such as https://app.example.com, separated by commas, or *"

    def show(self, value: tuple[str, ...]) -> list[str]:
        return list(value)

    def _parse(self, raw: object) -> tuple[str, ...]:
        if isinstance(raw, str):
            raw = [origin.strip() for origin in raw.split(",") if origin.strip()]
        if not isinstance(raw, list) or not all(_ORIGIN.fullmatch(_text(origin)) for origin in raw):
            raise ValueError(raw)
        return tuple(raw)


class TopicSetting(Kind):
    """The default of a topic setting, with the rules of `topics/config.py`; here it may also be text."""

    def __init__(self, name: str) -> None:
        self._name = name

    def parse(self, raw: object) -> object:
        value = self._parse(raw)
        try:
            TopicConfig.parse({self._name: value})
        except InvalidTopic as error:
            raise ValueError(error.reason.rpartition(", not ")[0]) from error
        return value

    def _parse(self, raw: object) -> object:
        return scalar(raw) if isinstance(raw, str) else raw


def scalar(text: str) -> int | float | str:
    """The number if the text is one, else the text."""
    for number in (int, float):
        with suppress(ValueError):
            return number(text)
    return text


def _address(text: str) -> Address:
    host, _, port = text.rpartition(":")
    bracketed = _IPV6.fullmatch(host)
    if not (bracketed or _NAME_OR_IPV4.fullmatch(host)) or not _PORT.fullmatch(port) or int(port) > _PORT_MAX:
        raise ValueError(text)
    return Address(bracketed[1] if bracketed else host, int(port))


def _text(raw: object) -> str:
    if not isinstance(raw, str):
        raise ValueError(raw)
    return raw


def _within(allowed: range, number: object) -> int:
    if type(number) is not int or number not in allowed:
        raise ValueError(number)
    return number
