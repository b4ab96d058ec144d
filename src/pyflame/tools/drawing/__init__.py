"""Pictures of graphs: what is drawn, where it goes, and how it looks."""

__all__: list[str] = []
