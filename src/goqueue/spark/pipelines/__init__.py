"""Jobs on Spark for work that is too large for one broker. Each module is one pipeline, named as its command.

A pipeline is a plain function from rows to rows, for use in any job, and a thin job around it for `goqueue pipeline`:

    from goqueue.spark import pipelines

    pipelines.archive.read(spark, "/archive/orders")        # the committed rows of an archive
    pipelines.compact.latest(rows)                          # the last row of each key
    pipelines.replay.selected(rows, ReplayConfig(target="again", topic="orders", where="priority = 0"))

Each is imported at its first use.
"""

from types import ModuleType

__all__ = ["archive", "compact", "dead_letters", "journeys", "lag", "replay", "stats"]


def __getattr__(name: str) -> ModuleType:
    if name == "archive":
        import goqueue.spark.pipelines.archive as archive_module

        return archive_module
    if name == "compact":
        import goqueue.spark.pipelines.compact as compact_module

        return compact_module
    if name == "dead_letters":
        import goqueue.spark.pipelines.dead_letters as dead_letters_module

        return dead_letters_module
    if name == "journeys":
        import goqueue.spark.pipelines.journeys as journeys_module

        return journeys_module
    if name == "lag":
        import goqueue.spark.pipelines.lag as lag_module

        return lag_module
    if name == "replay":
        import goqueue.spark.pipelines.replay as replay_module

        return replay_module
    if name == "stats":
        import goqueue.spark.pipelines.stats as stats_module

        return stats_module
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
