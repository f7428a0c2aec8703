import click


@click.command()
def daemon() -> None: ...
