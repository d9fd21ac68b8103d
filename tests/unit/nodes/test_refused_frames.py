"""Frames that cannot be taken are said by reason, and not again and again."""

from __future__ import annotations

import logging

import pytest

from dafka_core.nodes.refused_frames import LOOK_S, REASONS, SAY_AGAIN_S, RefusedFrames


def test_each_reason_is_said_at_once_and_then_once_a_minute(
    caplog: pytest.LogCaptureFixture,
) -> None:
    refused, counts = RefusedFrames("store S"), dict.fromkeys(REASONS, 0)

    def said(now: float) -> list[str]:
        caplog.clear()
        with caplog.at_level(logging.WARNING, "dafka.mesh"):
            refused.report(now, counts)
        return [each.getMessage() for each in caplog.records]

    assert said(1_000.0) == []
    assert not refused.is_due(1_000.0 + LOOK_S / 2)
    assert refused.is_due(1_000.0 + LOOK_S)
    counts["message"], counts["beacon"] = 3, 1
    refused.note("message", "the version is not 1")
    first = said(1_001.0)
    assert len(first) == 2
    assert "3 frames refused, reason message (the last one: the version is not 1)" in first[0]
    assert "store S: 1 frames refused, reason beacon;" in first[1]
    counts["message"] = 10_000
    assert said(1_001.0 + SAY_AGAIN_S / 2) == []
    (again,) = said(1_001.0 + SAY_AGAIN_S)
    assert "9997 frames refused, reason message" in again
    assert said(1_001.0 + 3 * SAY_AGAIN_S) == []  # none has come since
