"""The library calls behind the commands: one question, one answer."""

from __future__ import annotations

from perfmodel.api.compare import compare
from perfmodel.api.predict import predict, predict_all
from perfmodel.api.recommend import recommend

__all__ = ["compare", "predict", "predict_all", "recommend"]
