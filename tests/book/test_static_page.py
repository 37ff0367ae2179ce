"""What is changed in a page's words before it is written."""

import static_page
from docutils import nodes
from docutils.frontend import get_default_settings
from docutils.utils import new_document


def document(*children: nodes.Node) -> nodes.document:
    made = new_document("page", get_default_settings())
    made += nodes.paragraph("", "", *children)
    return made


def test_a_sign_stays_with_its_formula() -> None:
    formula = nodes.math("", "x")
    made = document(nodes.Text("Of "), formula, nodes.Text("), say"))
    static_page.keep_signs_with_formulas(None, made)  # type: ignore[arg-type]
    (paragraph,) = made.children
    before, whole, after = paragraph.children
    assert whole["classes"] == ["whole"]
    assert whole.children == [formula, nodes.Text("),")]
    assert (before, after) == ("Of ", " say")


def test_words_after_a_formula_stay_where_they_are() -> None:
    children = nodes.math("", "x"), nodes.Text(" and "), nodes.math("", "y")
    made = document(*children)
    static_page.keep_signs_with_formulas(None, made)  # type: ignore[arg-type]
    assert made.children[0].children == list(children)


def test_a_page_has_no_comment_for_colab() -> None:
    shown = []
    for source in ("# @title Solution\nx = 1", "# a title\nx = 1"):
        code = nodes.literal_block(source, source)
        static_page.drop_forms(None, document(code))  # type: ignore[arg-type]
        assert code.rawsource == code.astext()  # else it would not be coloured
        shown.append(code.astext())
    assert shown == ["x = 1", "# a title\nx = 1"]
