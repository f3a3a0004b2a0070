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


AFTER = """
    It is paid
    at once.

    Usage:
        buy it
    """


@pytest.mark.parametrize("text", [GOOGLE, SPHINX])
def test_text_after_the_parameters_is_description(text: str) -> None:
    docstring = read_docstring(inspect.cleandoc(text + AFTER))
    assert docstring.description.splitlines()[0] == "Buy a thing."
    assert docstring.description.endswith("It must be in stock.\n\nIt is paid\nat once.\n\nUsage:\n    buy it")
    assert docstring.parameters == read_docstring(inspect.cleandoc(text)).parameters


def test_text_directly_after_args_or_after_param_is_description() -> None:
    for text in ("Buy.\n\nArgs:\n    sku: which\n\nMore.", "Buy.\n\n:param sku: which\n\nMore."):
        docstring = read_docstring(text)
        assert (docstring.description, docstring.parameters) == ("Buy.\n\nMore.", {"sku": "which"})


def test_an_unknown_title_directly_after_args_is_description() -> None:
    docstring = read_docstring("Buy.\n\nArgs:\n    sku: which\nUsage:\n    buy it")
    assert (docstring.description, docstring.parameters) == ("Buy.\n\nUsage:\n    buy it", {"sku": "which"})


def test_google_parameters_without_indentation_keep_their_text() -> None:
    docstring = read_docstring("Buy.\n\nArgs:\nsku: which\n    thing\ncount: how many\n\nMore.")
    assert (docstring.description, docstring.parameters) == (
        "Buy.\n\nMore.",
        {"sku": "which thing", "count": "how many"},
    )


def test_a_second_paragraph_of_a_parameter_belongs_to_the_parameter() -> None:
    for text in ("Args:\n    sku: which\n\n        thing", ":param sku: which\n\n    thing"):
        docstring = read_docstring(text)
        assert (docstring.description, docstring.parameters) == ("", {"sku": "which thing"})
