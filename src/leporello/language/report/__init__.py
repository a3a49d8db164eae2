"""What a run is shown as: a summary, a Markdown report, curves, and text coloured by surprise."""
