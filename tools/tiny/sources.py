"""Sources of the training corpus: which package, which files in it, under which licence.

Contract: a table, no code that fetches. Every source is a named package of Debian or PyPI under a
licence that allows use and redistribution without copyleft (public domain, PSF, BSD, MIT,
Apache-2.0, PostgreSQL, Artistic). `prose`, `docs` and `code` are the three kinds that the training
mixture weighs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["prose", "docs", "code"]
Client = Literal["deb", "wheel", "sdist"]


@dataclass(frozen=True, slots=True)
class Source:
    """One package. `files` are globs below its root; `reader` is a key of `extract.READERS`."""

    package: str
    client: Client
    kind: Kind
    licence: str
    reader: str
    files: tuple[str, ...]
    max_bytes: int = 4_000_000  # of extracted text, so that no single project dominates its kind
    held_out_bytes: int = 0  # whole documents set aside before anything else
    skip: tuple[str, ...] = ()  # substrings of the relative path


def _deb(package: str, kind: Kind, licence: str, reader: str, files: str, **more: object) -> Source:
    return Source(package, "deb", kind, licence, reader, (files,), **more)  # type: ignore[arg-type]


def _wheel(package: str, licence: str, max_bytes: int = 2_000_000) -> Source:
    return Source(package, "wheel", "code", licence, "code", ("**/*.py",), max_bytes, skip=PY_SKIP)


# Vendored trees carry other people's licences; tests of numeric packages are tables of numbers.
PY_SKIP = (
    "_vendor",
    "vendored",
    "/extern",
    "/externals/",
    "/tests/",
    "/test/",
    "/locale/",
    "/testing/",
)

DOCS = (
    _deb(
        "python3.11-doc",
        "docs",
        "PSF-2.0",
        "html",
        "**/python3.11/html/**/*.html",
        max_bytes=12_000_000,
        held_out_bytes=70_000,
        skip=("genindex", "modindex", "search", "contents.html", "/_", "download.html"),
    ),
    _deb(
        "sqlite3-doc",
        "docs",
        "public domain",
        "html",
        "**/sqlite3/**/*.html",
        max_bytes=8_000_000,
        held_out_bytes=50_000,
        skip=("keyword_index", "doc_", "docsdata", "sitemap", "toc.html", "/c3ref/", "session/"),
    ),
    _deb(
        "postgresql-doc-15",
        "docs",
        "PostgreSQL",
        "html",
        "**/html/*.html",
        max_bytes=9_000_000,
        skip=("bookindex", "/release", "features"),
    ),
    _deb(
        "python-django-doc",
        "docs",
        "BSD-3-Clause",
        "html",
        "**/html/**/*.html",
        max_bytes=5_000_000,
        skip=("genindex", "modindex", "search", "contents.html", "/_", "/releases/"),
    ),
    _deb(
        "python-sqlalchemy-doc",
        "docs",
        "MIT",
        "html",
        "**/html/**/*.html",
        max_bytes=4_000_000,
        skip=("genindex", "search", "changelog_", "/_"),
    ),
    _deb(
        "python-scipy-doc",
        "docs",
        "BSD-3-Clause",
        "html",
        "**/*.html",
        max_bytes=3_000_000,
        skip=("genindex", "search", "/_", "release"),
    ),
    _deb(
        "rust-doc",
        "docs",
        "MIT OR Apache-2.0",
        "html",
        "**/html/book/**/*.html",
        skip=("print.html",),
    ),
    Source(
        "rust-doc",
        "deb",
        "docs",
        "MIT OR Apache-2.0",
        "html",
        (
            "**/html/reference/**/*.html",
            "**/html/rust-by-example/**/*.html",
            "**/html/nomicon/**/*.html",
            "**/html/embedded-book/**/*.html",
            "**/html/edition-guide/**/*.html",
        ),
        3_000_000,
        skip=("print.html",),
    ),
    _deb("nodejs-doc", "docs", "MIT", "text", "**/api/*.md.gz"),
    _deb(
        "apache2-doc", "docs", "Apache-2.0", "html", "**/manual/en/**/*.html", max_bytes=3_500_000
    ),
    _deb("erlang-doc", "docs", "Apache-2.0", "html", "**/*.html", max_bytes=3_000_000),
    _deb(
        "cmake-doc", "docs", "BSD-3-Clause", "text", "**/_sources/**/*.rst.txt", skip=("release/",)
    ),
    _deb(
        "llvm-14-doc",
        "docs",
        "Apache-2.0 WITH LLVM-exception",
        "text",
        "**/_sources/**/*.rst.txt",
        max_bytes=5_000_000,
        skip=("AMDGPU/",),
    ),
    _deb(
        "python-pandas-doc",
        "docs",
        "BSD-3-Clause",
        "text",
        "**/_sources/**/*.rst.txt",
        skip=("generated/",),
    ),
    _deb("sphinx-doc", "docs", "BSD-2-Clause", "text", "**/_sources/**/*.rst.txt"),
    _deb("python-flask-doc", "docs", "BSD-3-Clause", "text", "**/_sources/**/*.rst.txt"),
    _deb("python-werkzeug-doc", "docs", "BSD-3-Clause", "text", "**/_sources/**/*.rst.txt"),
    _deb("python-jinja2-doc", "docs", "BSD-3-Clause", "text", "**/_sources/**/*.rst.txt"),
    _deb("python-tornado-doc", "docs", "Apache-2.0", "text", "**/_sources/**/*.rst.txt"),
    _deb(
        "perl-doc",
        "docs",
        "Artistic (or GPL-1+)",
        "pod",
        "**/*.pod",
        max_bytes=6_000_000,
        skip=("delta.pod", "perltoc"),
    ),
)

PROSE = (
    _deb(
        "bible-kjv-text",
        "prose",
        "public domain",
        "bible",
        "**/bible.data",
        max_bytes=5_000_000,
        held_out_bytes=50_000,
    ),
    _deb(
        "r-cran-janeaustenr",
        "prose",
        "public domain (packaging MIT)",
        "rdata",
        "**/Rdata.rdb",
        max_bytes=6_000_000,
        held_out_bytes=70_000,
    ),
    _deb("jargon-text", "prose", "public domain", "jargon", "**/jargon.txt.gz"),
)

CODE = (
    _deb(
        "libpython3.11-stdlib",
        "code",
        "PSF-2.0",
        "code",
        "**/*.py",
        max_bytes=9_000_000,
        held_out_bytes=70_000,
    ),
    _deb("libpython3.11-testsuite", "code", "PSF-2.0", "code", "**/*.py", max_bytes=4_000_000),
    _deb(
        "golang-1.19-src",
        "code",
        "BSD-3-Clause",
        "code",
        "**/*.go",
        max_bytes=5_000_000,
        skip=("/vendor/", "_test.go", "/testdata/", "zerrors", "zsyscall", "tables.go", "/test/"),
    ),
    _deb("libstb-dev", "code", "MIT OR public domain", "code", "**/*.h", max_bytes=2_000_000),
    *(
        Source(
            name,
            "sdist",
            "code",
            licence,
            "code",
            ("**/*.c", "**/*.h", "**/*.py"),
            1_500_000,
            skip=("/tests/", "/test/", "/java/", "/research/"),
        )
        for name, licence in (
            ("zstandard", "BSD-3-Clause"),
            ("lz4", "BSD-3-Clause"),
            ("brotli", "MIT"),
            ("psutil", "BSD-3-Clause"),
            ("greenlet", "MIT"),
            ("msgpack", "Apache-2.0"),
        )
    ),
    *(
        _wheel(name, licence)
        for name, licence in (
            ("aiohttp", "Apache-2.0"),
            ("astropy", "BSD-3-Clause"),
            ("attrs", "MIT"),
            ("black", "MIT"),
            ("click", "BSD-3-Clause"),
            ("dask", "BSD-3-Clause"),
            ("django", "BSD-3-Clause"),
            ("docutils", "public domain, BSD-2-Clause, PSF-2.0"),
            ("fastapi", "MIT"),
            ("flask", "BSD-3-Clause"),
            ("httpx", "BSD-3-Clause"),
            ("jinja2", "BSD-3-Clause"),
            ("mako", "MIT"),
            ("markdown", "BSD-3-Clause"),
            ("matplotlib", "PSF-based"),
            ("mypy", "MIT"),
            ("networkx", "BSD-3-Clause"),
            ("numpy", "BSD-3-Clause"),
            ("pandas", "BSD-3-Clause"),
            ("pip", "MIT"),
            ("pydantic", "MIT"),
            ("pyparsing", "MIT"),
            ("pytest", "MIT"),
            ("requests", "Apache-2.0"),
            ("rich", "MIT"),
            ("scikit-learn", "BSD-3-Clause"),
            ("scipy", "BSD-3-Clause"),
            ("setuptools", "MIT"),
            ("sqlalchemy", "MIT"),
            ("statsmodels", "BSD-3-Clause"),
            ("sympy", "BSD-3-Clause"),
            ("torch-geometric", "MIT"),
            ("tornado", "Apache-2.0"),
            ("transformers", "Apache-2.0"),
            ("twisted", "MIT"),
            ("werkzeug", "BSD-3-Clause"),
        )
    ),
)

SOURCES: tuple[Source, ...] = (*PROSE, *DOCS, *CODE)
