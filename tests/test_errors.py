import pickle

import pytest

from operations import CallError, ErrorCode


def test_our_own_code_given_as_text_is_the_member() -> None:
    assert CallError("TIMEOUT").code is ErrorCode.TIMEOUT


def test_a_domain_code_stays_text() -> None:
    error = CallError("INVENTORY_EMPTY", "none left", {"sku": "a"})
    assert error.code == "INVENTORY_EMPTY"
    assert str(error) == "INVENTORY_EMPTY: none left"


@pytest.mark.parametrize(
    "error", [CallError("TIMEOUT", "late"), CallError("X", "y", {"a": [1]}), CallError(ErrorCode.ABORTED)]
)
def test_an_error_round_trips_as_plain_data_and_by_pickle(error: CallError) -> None:
    for read in (CallError.from_dict(error.to_dict()), pickle.loads(pickle.dumps(error))):
        assert (read.code, read.message, read.details) == (error.code, error.message, error.details)


def test_an_error_without_details_does_not_write_them() -> None:
    assert CallError("TIMEOUT", "late").to_dict() == {"code": "TIMEOUT", "message": "late"}


@pytest.mark.parametrize("data", [{}, {"code": 5, "message": None}, {"code": ""}])
def test_an_error_without_a_code_is_unknown(data: dict[str, object]) -> None:
    assert CallError.from_dict(data).code is ErrorCode.UNKNOWN_ERROR


def test_the_set_of_our_own_codes_is_closed() -> None:
    assert set(ErrorCode) == {
        *("OPERATION_NOT_FOUND", "ACCESS_DENIED", "VALIDATION_ERROR", "EXECUTION_ERROR"),
        *("TIMEOUT", "ABORTED", "UNAVAILABLE", "UNKNOWN_ERROR"),
    }
