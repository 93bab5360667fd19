"""The page as text: self-contained, and safe whatever the names in it are."""

import json
import math
import re
from html.parser import HTMLParser
from importlib import resources

import pytest

from tests.see.viewer import documents
from wayfare.errors import ArgumentError, ArgumentTypeError
from wayfare.see.viewer import page
from wayfare.see.viewer.page import SCRIPTS

HOSTILE = [
    "<script>alert(1)</script>", "</script><script>alert(1)</script>", "<!-- <script>", "--></script>", "]]>",
    "<img src=x onerror=alert(1)>", "\"'`&lt;", "\u2028\u2029\x00\x07", "{{document}}", "{{script}}", "\ud800",
    "%s %(x)s \\u003c",
]  # fmt: skip


class Elements(HTMLParser):
    """What a parser of HTML sees: the elements, and the text of each script."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.scripts, self.inside, self.attributes = [], [], False, []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [(tag, name, value) for name, value in attrs]
        if tag == "script":
            self.scripts.append("")
        self.inside = tag == "script"

    def handle_endtag(self, tag):
        self.inside = False

    def handle_data(self, data):
        if self.inside:
            self.scripts[-1] += data


def test_the_page_is_one_file_that_asks_for_nothing():
    text = page(documents.small())
    links = {value for _, name, value in Elements(text).attributes if name in ("src", "href")}
    assert links == {"data:,"}
    # The one address in it is the name of the SVG namespace, which nobody opens.
    assert set(re.findall(r"https?://[^\"'\s)]+", text)) == {"http://www.w3.org/2000/svg"}
    assert "@import" not in text
    assert not re.search(r"\b(fetch|XMLHttpRequest|WebSocket|importScripts|eval)\b", text)
    assert "default-src 'none'" in text
    assert "unsafe" not in text


def test_text_enters_the_page_only_as_text():
    text = page(documents.small())
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|new Function", text)


@pytest.mark.parametrize("word", HOSTILE)
def test_hostile_names_stay_data(word):
    plain, hostile = Elements(page(documents.hostile("name"))), Elements(page(documents.hostile(word)))
    assert hostile.tags == plain.tags
    assert len(hostile.scripts) == 2
    read = json.loads(hostile.scripts[0])
    assert read["title"] == word
    assert read == documents.hostile(word)
    assert hostile.scripts[1] == plain.scripts[1]


def test_title_given_stands_in_place_of_the_documents_own():
    text = page(documents.small(), title="<b>mine</b>")
    assert "<title>&lt;b&gt;mine&lt;/b&gt;</title>" in text
    assert json.loads(Elements(text).scripts[0])["title"] == "<b>mine</b>"


def test_numbers_that_json_has_not_become_null_and_objects_text():
    document = documents.small()
    document["stats"][0][:3] = [math.nan, math.inf, -math.inf]
    document["strange"] = {"set": {1}, 3: (1, 2)}
    read = json.loads(Elements(page(document)).scripts[0], parse_constant=lambda name: pytest.fail(name))
    assert read["stats"][0][:3] == [None, None, None]
    assert read["strange"] == {"set": "{1}", "3": [1, 2]}


@pytest.mark.parametrize(
    ("given", "kind"),
    [([], ArgumentTypeError), (None, ArgumentTypeError), ({}, ArgumentError), ({"format": "other"}, ArgumentError)],
)
def test_what_is_no_document_is_refused(given, kind):
    with pytest.raises(kind, match="view.page"):
        page(given)


def test_every_script_of_the_package_is_in_the_page():
    there = {file.name for file in resources.files("wayfare.see.viewer").iterdir() if file.name.endswith(".js")}
    assert there == set(SCRIPTS)
