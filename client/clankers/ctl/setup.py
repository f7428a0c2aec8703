import click


@click.command()
def setup() -> None: ...
