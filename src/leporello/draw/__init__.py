"""Pictures of spots in columns: laid out, and written as SVG, PNG, DOT, Mermaid and text. Independent of the rest."""
