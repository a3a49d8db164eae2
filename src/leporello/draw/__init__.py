"""Pictures of spots in columns: laid out, and written as SVG, DOT, Mermaid and text. Knows nothing of the project."""
