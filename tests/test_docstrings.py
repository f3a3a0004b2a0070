import inspect

import pytest

from operations.docstrings import read_docstring

GOOGLE = """Buy a thing.

    It must be in stock.

    Args:
        sku: which thing,
            by its number
        *count (int): how many
        **more: the rest

    Returns:
        price: what it cost
    """
NUMPY = """Buy a thing.

    It must be in stock.

    Parameters
    ----------
    sku : str
        which thing,
        by its number
    count, more : int, optional
        how many

    Returns
    -------
    int
        what it cost
    """
SPHINX = """Buy a thing.

    It must be in stock.

    :param sku: which thing,
        by its number
    :param int count: how many
    :returns: what it cost
        in the end
    :rtype: int
    """


@pytest.mark.parametrize("text", [GOOGLE, NUMPY, SPHINX])
def test_each_form_gives_description_and_parameters(text: str) -> None:
    docstring = read_docstring(inspect.cleandoc(text))
    assert docstring.description == "Buy a thing.\n\nIt must be in stock."
    assert docstring.parameters["sku"] == "which thing, by its number"
    assert docstring.parameters["count"] == "how many"
    assert "price" not in docstring.parameters
    assert "int" not in docstring.parameters


def test_several_names_share_one_text() -> None:
    assert read_docstring(inspect.cleandoc(NUMPY)).parameters["more"] == "how many"


@pytest.mark.parametrize("text", [None, ""])
def test_a_missing_docstring_has_no_description(text: str | None) -> None:
    docstring = read_docstring(text)
    assert (docstring.description, docstring.parameters) == ("", {})


def test_a_sentence_that_opens_like_a_section_is_description() -> None:
    text = "Returns the args: all of them.\n\nNotes are kept elsewhere"
    assert read_docstring(text).description == text
