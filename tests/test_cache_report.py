"""`wayfare cache`: what it shows and what it removes."""

import json
import os
import re

import pytest

from wayfare.cli import main
from wayfare.codegen.runtime.cache import default_store, key_of
from wayfare.core.config import settings
from wayfare.core.format import bytes_text


@pytest.fixture
def store(tmp_path, monkeypatch):
    monkeypatch.setattr(settings, "cache_folder", tmp_path / "kernels")
    monkeypatch.setattr(settings, "cache_limit", 3 * 2**20)
    return default_store()


def shown(capsys, *options):
    assert main.main(["cache", *options]) == 0
    return capsys.readouterr().out


def fill(store, count=3):
    for number in range(count):
        about = {"name": f"kernel_{number}", "source": "…", "layout": "along cc", "time": "1000000000"}
        store.put(key_of(str(number)), b"x" * 5000, about)


def test_an_empty_cache(store, capsys):
    text = shown(capsys)
    assert "0 kernels, 0 B of at most 3 MB" in text
    assert "kernel_" not in text
    assert not store.folder.exists()  # looking makes nothing


def test_the_table_fits_eighty_columns(store, capsys):
    fill(store)
    store.put(key_of("long"), b"x" * 2**20, {"name": "long " * 30 + "\nname", "layout": "c" * 50})
    store.put(key_of("bare"), b"x", {})
    lines = shown(capsys).splitlines()
    table = [line for line in lines if not line.startswith("  folder")]
    assert all(len(line) <= 80 for line in table[: len(table) - 1])
    (row,) = [line for line in lines if "kernel_1" in line]
    assert "along cc" in row and "5.03 KB" in row and re.search(r"\d{4,} d ago", row) and "just now" in row
    assert any("long long" in line and "…" in line and "1 MB" in line for line in lines)
    assert any("unnamed" in line for line in lines)
    assert any(f"5 kernels, {bytes_text(store.size())} of at most 3 MB" in line for line in lines)


def test_the_most_recently_used_come_first_and_the_rest_is_counted(store, capsys):
    fill(store, 45)
    for number in range(45):
        path = store.folder / f"{key_of(str(number))}.kernel"
        os.utime(path, (1e9 + number * 1000, 1e9 + number * 1000))
    text = shown(capsys)
    assert text.index("kernel_44") < text.index("kernel_43") < text.index("kernel_5 ")
    assert "kernel_4 " not in text
    assert "and 5 kernels more" in text


def test_clear_says_what_it_removed(store, capsys):
    fill(store)
    size = store.size()
    text = shown(capsys, "--clear")
    assert re.search(rf"Removed 3 kernels, {size / 1024:.1f} KB, from ", text)
    assert store.entries() == [] and store.size() == 0
    assert "Removed 0 kernels, 0 B" in shown(capsys, "--clear")


def test_json_lists_everything(store, capsys):
    fill(store)
    report = json.loads(shown(capsys, "--json"))
    assert report["folder"] == str(store.folder)
    assert report["limit"] == 3 * 2**20 and report["size"] == store.size()
    assert sorted(kernel["about"]["name"] for kernel in report["kernels"]) == ["kernel_0", "kernel_1", "kernel_2"]
    assert {kernel["made"] for kernel in report["kernels"]} == {1e9}


def test_folder_prints_the_folder_alone(store, capsys):
    assert shown(capsys, "--folder") == f"{store.folder}\n"


def test_a_cache_that_is_off(monkeypatch, capsys):
    monkeypatch.setattr(settings, "cache_folder", None)
    assert shown(capsys) == shown(capsys, "--clear") == "The kernel cache is off.\n"
    assert shown(capsys, "--folder") == "off\n"
    assert json.loads(shown(capsys, "--json"))["folder"] is None


def test_options_do_not_mix(capsys):
    with pytest.raises(SystemExit) as ended:
        main.main(["cache", "--clear", "--json"])
    assert ended.value.code == 2
    assert "not allowed with" in capsys.readouterr().err
