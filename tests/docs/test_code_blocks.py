"""Every code block of the README and the docs runs as it is printed, twice in a row, page by page.

A page is gone through as a new user would: blocks in order, one broker, one terminal, one directory, one home, and
nothing of them is there for the next page. What cannot be run is in `rules.py`, with the reason.

Commands run in processes that have imported goqueue already (`warm.py`), those with Spark in one for each page, and
pages with Spark are gone through once. With `GOQUEUE_DOCS=all` every command starts from nothing, and all run twice.
"""

import os
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import pytest

from goqueue.server.config import ConfigFile, load
from tests.docs import rules, warm
from tests.docs.markdown import PAGES, Block, blocks, commands, is_transcript, name_of, transcript
from tests.docs.reader import PageFailed, Reader, printed

RUN = ("sh", "python")
CONFIGURATION = "toml"


def is_run(block: Block) -> bool:
    return block.language in RUN


def needs_spark(block: Block) -> bool:
    return is_run(block) and rules.SPARK.search(block.text) is not None and not is_left_out(block)


def is_left_out(block: Block) -> bool:
    """Whether nothing of the block is run."""
    return block.language == "sh" and all(
        any(rule.command.search(command) for rule in rules.NOT_RUN) for command in commands(block.text)
    )


def is_served_by(page: list[Block]) -> bool:
    """Whether the page has its own command to start a broker."""
    return any(is_run(block) and rules.SERVE.search(block.text) for block in page)


IS_COLD = os.environ.get("GOQUEUE_DOCS") == "all"


@pytest.fixture(scope="module")
def forks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path | None]:
    """Where a process waits to be forked for a command."""
    if IS_COLD:
        yield None
        return
    path = tmp_path_factory.mktemp("warm") / "forks"
    with warm.started("forks", path, warm.clean_environment()):
        yield path


def read(page: Path, directory: Path, forks: Path | None, *, with_spark: bool) -> None:
    failed = None
    try:
        go_through(page, directory, forks, with_spark=with_spark)
    except PageFailed as found:
        failed = str(found)
    if failed:
        pytest.fail(failed, pytrace=False)


def go_through(page: Path, directory: Path, forks: Path | None, *, with_spark: bool) -> None:
    found = [block for block in blocks(page) if is_run(block) and not is_left_out(block)]
    with Reader(directory, has_broker=not is_served_by(found), forks=forks, with_spark=with_spark) as reader:
        runs = (1,) if with_spark and not IS_COLD else (1, 2)
        for run, block in product(runs, found):
            if with_spark or not needs_spark(block):
                reader.go_through(block, run)


RUNNABLE = [page for page in PAGES if any(is_run(block) for block in blocks(page))]
ON_SPARK = [page for page in RUNNABLE if any(map(needs_spark, blocks(page)))]


@pytest.mark.parametrize("page", RUNNABLE, ids=name_of)
def test_a_page_does_what_it_says_twice_in_a_row(page: Path, tmp_path: Path, forks: Path | None) -> None:
    read(page, tmp_path, forks, with_spark=False)


@pytest.mark.spark
@pytest.mark.parametrize("page", ON_SPARK, ids=name_of)
def test_a_page_does_what_it_says_with_spark(page: Path, tmp_path: Path, forks: Path | None) -> None:
    read(page, tmp_path, forks, with_spark=True)


@pytest.mark.parametrize("block", [one for page in PAGES for one in blocks(page)], ids=str)
def test_a_block_says_what_it_is_written_in(block: Block) -> None:
    assert block.language in (*RUN, CONFIGURATION, *rules.NOT_CODE)


@pytest.mark.parametrize(
    "block", [one for page in PAGES for one in blocks(page) if one.language == CONFIGURATION], ids=str
)
def test_a_configuration_is_one(block: Block) -> None:
    config = load(file=ConfigFile(str(block), block.text))

    assert config.sources


def test_what_is_not_run_is_there() -> None:
    shell = [one for page in PAGES for one in blocks(page) if one.language == "sh"]
    all_commands = [command for block in shell for command in commands(block.text)]

    for rule in (*(each.command for each in rules.NOT_RUN), rules.SERVE, rules.ENDLESS):
        assert any(rule.search(command) for command in all_commands), rule.pattern


# The reader itself.


def page_of(tmp_path: Path, text: str) -> list[Block]:
    file = tmp_path / "page.md"
    file.write_text(text)
    return blocks(file)


@pytest.fixture(params=["warm", "cold"])
def reader(tmp_path: Path, forks: Path | None, request: pytest.FixtureRequest) -> Iterator[Reader]:
    with Reader(tmp_path, has_broker=False, forks=forks if request.param == "warm" else None) as found:
        yield found


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("```sh\ntrue\nfalse\n```\n", "exit code 1"),
        ("```sh\n$ echo one\ntwo\n```\n", "which is not the output"),
        ("```python\nprint(undefined)\n```\n", "NameError"),
        ('```python\nprint("one")  # two\n```\n', "it does not print 'two'"),
    ],
)
def test_a_block_that_does_something_else_is_found(reader: Reader, tmp_path: Path, text: str, what: str) -> None:
    (block,) = page_of(tmp_path, text)

    with pytest.raises(PageFailed, match=what) as caught:
        reader.go_through(block, 1)
    assert "page.md:1, run 1" in str(caught.value)


def test_a_second_run_that_ends_differently_is_found(reader: Reader, tmp_path: Path) -> None:
    (block,) = page_of(tmp_path, "```sh\n$ mkdir once\n```\n")

    reader.go_through(block, 1)

    with pytest.raises(PageFailed, match="exit code 1, but 0 the first time"):
        reader.go_through(block, 2)


def test_a_command_that_is_warm_ends_as_one_that_is_cold(reader: Reader, tmp_path: Path) -> None:
    text = (
        "$ goqueue topic nothing > /dev/null 2>&1 || echo $?\n2\n$ cd /; goqueue version | cut -d ' ' -f 1\ngoqueue\n"
    )

    for block in page_of(tmp_path, f"```sh\n{text}```\n"):
        reader.go_through(block, 1)


def test_a_program_runs_what_it_left_for_its_exit_with_warnings_as_errors(reader: Reader, tmp_path: Path) -> None:
    at_exit = "import atexit\natexit.register(print, 'bye')\nprint('hello')\n"
    warns = "import warnings\nwarnings.warn('careful')\n"
    first, second = page_of(tmp_path, f"```python\n{at_exit}```\n```python\n{warns}```\n")

    reader.go_through(first, 1)

    assert (tmp_path / f"line_{first.line}.log").read_text() == "hello\nbye\n"
    with pytest.raises(PageFailed, match="UserWarning: careful"):
        reader.go_through(second, 1)


def test_a_terminal_remembers(reader: Reader, tmp_path: Path) -> None:
    for block in page_of(tmp_path, "```sh\nalias say=echo\nnow=here\n```\n```sh\n$ say $now\nhere\n```\n"):
        reader.go_through(block, 1)


def test_a_transcript_is_commands_and_their_outputs() -> None:
    text = "$ cat <<X |\none\nX\n  wc\n1\n$ true\n$ echo \\\n  a\na\n"

    assert is_transcript(text)
    assert [tuple(command) for command in transcript(text)][1:] == [("true", ""), ("echo \\\n  a", "a")]


@pytest.mark.parametrize(
    ("output", "shown", "is_good"),
    [
        ("a 2026-01-31T00:00:00.5Z", "a 2025-12-24T18:00:00Z", True),
        ("stored, 61,000 per second", "stored, 7 per second", True),
        ("one\ntwo\nthree", "one\n...\nthree", True),
        ("one", "two", False),
        ("one\ntwo", "one", False),
    ],
)
def test_an_output_is_compared_without_what_varies(output: str, shown: str, is_good: bool) -> None:
    assert rules.is_as_shown(output, shown) == is_good


def test_the_comment_after_a_print_is_its_output() -> None:
    assert printed("x = 1  # one\nprint(x)  # 1\n    print(f(x))  # 2, 3\nprint(x)\n") == ["1", "2, 3"]
