"""What a query of a job prints, and where it runs."""

from __future__ import annotations

import json

from dafka_core.queries.source_offset import SourceOffset
from dafka_core.records import TopicPartition
from dafka_spark.jobs.support.job_session import ends


def test_a_batch_of_many_partitions_is_summed_up() -> None:
    many = {TopicPartition("t", f"P{number}"): 5 for number in range(1_000)}
    assert ends(json.dumps(SourceOffset(many).as_json())) == {"partitions": 1_000, "records": 5_000}
    few = {TopicPartition("t", "A"): 5}
    assert ends(json.dumps(SourceOffset(few).as_json())) == {"t": {"A": 5}}
