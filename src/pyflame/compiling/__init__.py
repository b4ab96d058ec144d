"""Functions traced once and replayed."""

__all__: list[str] = []
