"""The chapters as Colab and Jupyter open them: no MyST, the numbers of the built pages, the same code."""

import re
from pathlib import Path

import chapters
import nbformat
import plain
import pytest
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell as code
from nbformat.v4 import new_markdown_cell as text

from .conftest import without

MYST = r"(?<!\$)\{[a-z:-]+\}`|\{(exercise|solution-\w+|admonition|note|image)\}|^:::|\$\$ \(|^\([\w-]+\)=$"
LINK = re.compile(r"\]\((\S+?)(?: \"[^\"]*\")?\)")
BUILT = chapters.ROOT / "_build" / "html"


def made(*cells: NotebookNode) -> list[NotebookNode]:
    return list(plain.convert("07-routers", nbformat.v4.new_notebook(cells=list(cells))).cells)


def words(source: str) -> str:
    """A cell of chapter 7, where (softmax-jacobian) and exercise `trap` are, without MyST."""
    (cell,) = made(text(source))
    return str(cell.source)


def markdown(notebook: NotebookNode) -> str:
    return "\n\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")


def converted(path: Path) -> NotebookNode:
    return plain.convert(path.stem, nbformat.read(path, as_version=4))


def test_an_equation_has_its_number_and_so_has_what_refers_to_it() -> None:
    number = plain.targets()["softmax-jacobian"].words
    assert re.fullmatch(r"\(\d+\)", number)
    assert words("So\n\n$$\na = b .\n$$ (softmax-jacobian)\n\nand by {eq}`softmax-jacobian`.") == (
        f"So\n\n$$\na = b .\n\\tag{{{number[1:-1]}}}\n$$\n\nand by {number}."
    )
    elsewhere = plain.targets()["role-clustered"]
    assert elsewhere.file == "03-who-shares-what.ipynb"
    assert words("{eq}`role-clustered`") == (
        f"[{elsewhere.words}]({chapters.notebooks_url()}/03-who-shares-what.ipynb)"
    )


def test_references_say_their_own_words_or_the_titles() -> None:
    notes = f"{chapters.notebooks_url()}/reading-notes.ipynb"
    assert words("{ref}`notes-start`") == f"[How adaptors start]({notes})"
    assert words("a {ref}`long\nnote <notes-start>`") == f"a [long\nnote]({notes})"
    assert words("{ref}`trap`, {ref}`this <trap>`") == f"{plain.targets()['trap'].words}, this"
    assert words("{doc}`names <api/methods>`") == f"[names]({chapters.folder_url()}/api/methods.md)"
    assert words("[notes](reading-notes.ipynb), [terms](notation.md)") == (
        f"[notes]({notes}), [terms]({chapters.folder_url()}/notation.md)"
    )
    with pytest.raises(KeyError, match="nowhere"):
        words("{ref}`nowhere`")


def test_citations_are_authors_and_year() -> None:
    found = words("{cite}`mcmahan2017fedavg`, {cite:t}`stich2019local`, {cite}`eckart1936approximation`")
    assert re.sub(r"\]\(.*?\"\)", "]", found) == (
        "([McMahan *et al.*, 2017]), Stich [(2019)], ([Eckart and Young, 1936])"
    )
    assert "Communication-efficient learning of deep networks" in found


def test_no_reference_ends_its_links_title() -> None:
    assert not [key for key, (*_, whole) in plain.references().items() if '"' in whole]


def test_an_exercise_is_a_heading_and_its_solution_is_folded() -> None:
    number = plain.targets()["trap"].words
    cells = made(
        text("Now you.\n\n```{exercise} Out\n:label: trap\n\nReturn $x$.\n\nOr ${y}$.\n```"),
        code("stub"),
        text("````{solution-start} trap\n:class: dropdown\n````\n\nIt is `1`."),
        code("# @title Solution\n1"),
        text("It was `1`.\n\n````{solution-end}\n````\n\n## Summary"),
        text("````{solution-start} trap\n:class: dropdown\n````"),
        text("````{solution-end}\n````"),
    )
    folded = "<details>\n<summary>Solution</summary>\n\nIt {} `1`.\n\n</details>"
    assert [cell.source for cell in cells] == [
        f"Now you.\n\n### {number}: Out\n\nReturn $x$.\n\nOr ${{y}}$.",
        "stub",
        folded.format("is"),
        "# @title Solution\n1",
        folded.format("was") + "\n\n## Summary",
    ]


def test_boxes_pictures_and_labels() -> None:
    assert words(":::{admonition} Two {eq}`softmax-jacobian`\n:class: dropdown\n\nOne.\n:::") == (
        f"<details>\n<summary>Two {plain.targets()['softmax-jacobian'].words}</summary>\n\nOne.\n\n</details>"
    )
    assert words(":::{note}\nOne.\nTwo.\n:::\n\nThree.") == "> One.\n> Two.\n\nThree."
    picture = words("```{image} images/laboratory.png\n:alt: Controls.\n```")
    assert picture == f"![Controls.]({chapters.repository()['url']}/raw/main/book/images/laboratory.png)"
    assert words("(rules-fail)=\n## Where it may fail") == "## Where it may fail"


def test_folded_code_is_folded_with_its_words() -> None:
    named = code("1", metadata={"tags": ["hide-input"], "mystnb": {"code_prompt_show": "Show one"}})
    for cell, title in ((named, "Show one"), (code("1", metadata={"tags": ["hide-input"]}), "Show the code")):
        (folded,) = made(cell)
        assert folded.source == f"# @title {title}\n1"
        assert folded.metadata.cellView == "form"
        assert folded.metadata.jupyter.source_hidden


@pytest.mark.parametrize("path", chapters.notebooks(), ids=lambda path: path.stem)
class TestChapter:
    def test_has_no_myst_and_the_same_code(self, path: Path) -> None:
        notebook = converted(path)
        nbformat.validate(notebook)
        assert not [found[0] for found in re.finditer(MYST, markdown(notebook), re.M)]
        assert markdown(notebook).count("<details>") == markdown(notebook).count("</details>")
        before, after = (
            [re.sub(r"^# @title .*\n", "", cell.source) for cell in each.cells if cell.cell_type == "code"]
            for each in (nbformat.read(path, as_version=4), notebook)
        )
        assert after == before

    def test_links_lead_to_what_is_there(self, path: Path) -> None:
        for link in LINK.findall(markdown(converted(path))):
            assert link.startswith(("https://", "http://")), link
            for place in (chapters.notebooks_url(), chapters.folder_url()):
                if link.startswith(f"{place}/"):
                    assert (chapters.BOOK / link.removeprefix(f"{place}/")).exists(), link

    def test_has_the_numbers_of_the_built_page(self, path: Path) -> None:
        page = BUILT / f"{path.stem}.html"
        if not page.exists():
            without("no built book: make book")
        html, source = page.read_text(encoding="utf-8"), markdown(converted(path))
        assert re.findall(r"\\tag\{(\d+)\}", source) == re.findall(r'class="eqno">\((\d+)\)', html)
        assert re.findall(r"^### (Exercise \d+): ", source, re.M) == re.findall(
            r'class="caption-number">(Exercise \d+) ', html
        )

    def test_is_what_the_built_page_s_button_downloads(self, path: Path) -> None:
        page = BUILT / f"{path.stem}.html"
        if not page.exists():
            without("no built book: make book")
        assert f'href="_sources/{path.name}"' in page.read_text(encoding="utf-8")
        there = nbformat.read(BUILT / "_sources" / path.name, as_version=4)
        assert there.cells == converted(path).cells
