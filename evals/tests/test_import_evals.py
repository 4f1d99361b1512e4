from importlib import metadata, resources

import bytebound_evals


def test_version_is_the_distributions() -> None:
    assert bytebound_evals.__version__ == metadata.version("bytebound-evals")


def test_ships_its_types() -> None:
    assert resources.files(bytebound_evals).joinpath("py.typed").is_file()


def test_every_error_has_one_base() -> None:
    assert issubclass(bytebound_evals.DataError, bytebound_evals.EvalError)
