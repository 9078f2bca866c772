"""The benchmark of an audit: its images have the shortcut that they say, and half is half."""

import json
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

pytestmark = pytest.mark.slow

FILE = Path(__file__).parents[2] / "benchmarks" / "audit_time.py"


@pytest.fixture(scope="module")
def script() -> Any:
    spec = spec_from_file_location("benchmark_audit_time", FILE)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_the_corner_goes_with_the_label_in_nine_of_ten(script: Any, tmp_path: Path) -> None:
    script.write_images(tmp_path, 300, 16)
    red = {
        label: [
            np.asarray(Image.open(path))[0, 0].tolist() == [255, 0, 0] for path in (tmp_path / "val" / label).iterdir()
        ]
        for label in script.LABELS
    }
    assert [len(found) for found in red.values()] == [150, 150]
    assert np.mean(red["light"]) == pytest.approx(0.9, abs=0.08)  # three deviations
    assert np.mean(red["dark"]) == pytest.approx(0.1, abs=0.08)


def test_half_is_told_by_the_rows_on_disk(script: Any, tmp_path: Path) -> None:
    half = script.half_done(tmp_path, 100)
    assert not half()
    (tmp_path / "features").mkdir()
    (tmp_path / "features" / "a.json").write_text(json.dumps({"done": 49}))
    (tmp_path / "features" / "b.json").write_text("{")  # half-written
    assert (script.count_cached_rows(tmp_path), half()) == (49, False)
    (tmp_path / "features" / "a.json").write_text(json.dumps({"done": 50}))
    assert half()
