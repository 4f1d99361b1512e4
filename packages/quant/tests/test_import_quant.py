from importlib import metadata, resources

import bytebound_quant


def test_version_is_the_distributions() -> None:
    assert bytebound_quant.__version__ == metadata.version("bytebound-quant")


def test_ships_its_types() -> None:
    assert resources.files(bytebound_quant).joinpath("py.typed").is_file()


def test_every_error_has_one_base() -> None:
    assert issubclass(bytebound_quant.QuantError, Exception)
