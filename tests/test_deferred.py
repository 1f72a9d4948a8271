"""Modules named by `deferred` are imported when they are first used, by any number of threads."""

import subprocess
import sys
import threading

import pytest

from fairlead.deferred import deferred

NOT_YET = """
import sys
from fairlead.deferred import deferred

settings = deferred("fairlead.specs.formats.settings")
assert "fairlead.specs.formats.settings" not in sys.modules
assert repr(settings) == "deferred('fairlead.specs.formats.settings')"
settings.read_setting
assert "fairlead.specs.formats.settings" in sys.modules
"""


def test_a_module_is_imported_when_a_name_of_it_is_read() -> None:
    subprocess.run([sys.executable, "-c", NOT_YET], check=True, timeout=60)


def test_a_name_is_read_anew_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    money = deferred("fairlead.text.money")
    monkeypatch.setattr("fairlead.text.money.describe_microusd", lambda amount: f"{amount} replaced")
    assert money.describe_microusd(3) == "3 replaced"  # type: ignore[operator]


def test_threads_that_read_at_the_same_time_all_get_the_whole_module(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = tmp_path_factory.mktemp("modules")
    (directory / "slow_to_import.py").write_text("import time\ntime.sleep(0.2)\nvalue = 7\n")
    monkeypatch.syspath_prepend(directory)
    module, values = deferred("slow_to_import"), []
    threads = [threading.Thread(target=lambda: values.append(module.value)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert values == [7] * 8


def test_an_unknown_name_or_module_is_an_error_of_importing() -> None:
    with pytest.raises(AttributeError, match="no attribute 'lacking'"):
        deferred("fairlead.text.money").lacking  # noqa: B018
    with pytest.raises(ModuleNotFoundError, match=r"fairlead\.lacking"):
        deferred("fairlead.lacking").value  # noqa: B018
