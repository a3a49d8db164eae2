"""What the five texts hold, as data of our own: equations, figures, claims, programs, questions, unresolved references.

An entry is the line of the text where it begins, its kind and its name. Equations have the numbers of "Deep Learning",
chapter 10, where the texts follow it, else they are counted. Images are formulas of 000 whose pictures are gone.
"""

from __future__ import annotations

TEXTS = {
    "000": r"""
3 eq 10.1
7 eq 10.3
15 eq 10.4
21 eq 10.5
31 eq 10.7
11 fig 展开计算图1
25 fig 展开计算图2
1 claim parameter-sharing
5 claim recurrent-definition
5 claim tau-minus-one
17 claim whole-past
19 claim any-loop
23 claim output-layer
27 claim lossy-summary
27 claim criterion-selects
27 claim language-need-not-store-all
27 claim autoencoder
29 claim graph-grows
35 claim same-input-size
36 claim same-transition
38 claim unseen-lengths
38 claim fewer-samples
40 claim two-views
3 image 1
5 image 2
5 image 3
5 image 4
5 image 5
5 image 6
5 image 7
5 image 8
7 image 9
13 image 10
15 image 11
19 image 12
19 image 13
21 image 14
23 image 15
27 image 16
27 image 17
27 image 18
27 image 19
27 image 20
27 image 21
29 image 22
29 image 23
31 image 24
33 image 25
33 image 26
33 image 27
33 image 28
36 image 29
38 image 30
38 image 31
""",
    "001": r"""
19 eq 10.1
33 eq 10.3
62 eq 10.4
79 eq 10.5
117 eq 10.7
53 fig 10.1
93 fig 10.2
11 claim parameter-sharing
27 claim recurrent-definition
29 claim tau-minus-one
70 claim whole-past
74 claim any-loop
84 claim output-layer
97 claim lossy-summary
99 claim criterion-selects
101 claim language-need-not-store-all
101 claim autoencoder
108 claim real-time-circuit
108 claim black-square
109 claim node-per-step
110 claim graph-grows
127 claim same-input-size
128 claim same-transition
133 claim unseen-lengths
133 claim fewer-samples
135 claim two-views
""",
    "002": r"""
22 eq softmax
82 eq o-is-log-p
87 eq 10.8
90 eq 10.9
91 eq 10.10
92 eq 10.11
104 eq 10.14
19 fig 10.3
36 fig output_recurrence_rnn
56 fig single_output_rnn
4 claim design-elman
7 claim design-jordan
11 claim design-one-output
21 claim loss-per-output
22 claim o-unnormalised
24 claim three-matrices
42 claim jordan-weaker
43 claim hidden-carries-anything
44 claim only-o-passes
47 claim o-wide-enough
48 claim jordan-parallel
59 claim fixed-size-summary
60 claim gradient-from-downstream
65 claim universal
66 claim linear-time
67 claim exact-not-approximate
68 claim binary-in-and-out
69 claim 886-units
70 claim input-is-specification
71 claim stacks-in-rationals
75 claim tanh-assumed
78 claim discrete-output
85 claim initial-state
98 claim names-of-parameters
102 claim total-is-sum
114 claim read-one-entry
115 claim gradient-expensive
117 claim not-parallel
118 claim memory-tau
119 claim bptt
120 claim powerful-but-costly
9 question Jordan优于Elam
13 question 如何训练
72 question 图灵机这一段没看懂
80 question o_i = log p_i
96 question 非标准化的对数概率怎么是这么算的
100 question τ个输入产生τ个输出
112 question 这个公式是怎么推出来的
121 question 我们是否有其他选择呢
1 ref 1 \sec?
4 ref 2 \fig?
7 ref 3 \fig?
11 ref 4 \fig?
25 ref 5 \eqn?
42 ref 6 \fig?
43 ref 7 \fig?
48 ref 8 \sec?
65 ref 9 \fig?
65 ref 10 \eqn?
66 ref 11 {cite?}
69 ref {Siegelmann+Sontag-1995}
74 ref 12 \fig?
116 ref 13 \fig?
119 ref 14 \sec?
""",
    "003": r"""
16 eq 1
21 eq 2
28 eq 3
32 eq 4
39 eq 5
43 eq 6
62 eq 7
66 eq 8
80 eq 9
87 eq 10
91 eq 11
98 eq 12
102 eq 13
106 eq 14
114 eq 15
127 eq 16
136 eq 17
142 eq 18
148 eq 19
52 fig rnn_1
56 fig rnn_2
146 fig rnn_3
15 claim n-gram-tables-explode
20 claim hidden-stores-past
24 claim not-an-approximation
24 claim layer-is-not-state
25 claim heading-without-state
31 claim broadcast
35 claim random-pairs
38 claim one-row-a-sequence
42 claim state-keeps-history
42 claim recurrent-layer
46 claim constant-parameters
49 claim concatenation
51 claim state-goes-two-ways
55 claim shift-by-one
55 claim bengio
58 claim third-output
58 claim softmax-and-cross-entropy
58 claim batch-of-vectors
61 claim fewer-bits
65 claim lengths-comparable
69 claim harmonic-mean
70 claim best-case
71 claim worst-case
72 claim uniform-case
76 claim bptt
76 claim 1000-steps
76 claim first-token-matters
97 claim third-factor-hard
117 claim chain-gets-long
120 claim full-butterfly
120 claim full-hardly-used
123 claim truncation-approximates
123 claim truncation-short-term
126 claim random-is-unbiased
130 claim long-are-rare-and-heavy
132 claim reason-1-few-steps-suffice
132 claim reason-2-variance
132 claim reason-3-regularisation
135 claim identity-activation
145 claim h3-depends-on-h2
147 claim against-the-arrows
""",
    "004": r"""
9 eq 1
15 eq 2
19 eq 3
25 eq 4
147 eq 5
149 eq 6
151 eq 7
153 eq 8
159 eq 9
173 eq 10
29 fig 1
41 fig 2
69 fig 3
90 fig 4
109 fig 5
179 fig 6
212 fig 7
86 program 10-1
105 program 10-2
143 program 10-3
236 program 10-4
1 claim sequences
3 claim time-delay-shallow
3 claim convolution-neighbours
3 claim same-rule-deep
21 claim whole-past
82 claim o-unnormalised
82 claim three-matrices
84 claim same-step
103 claim o-is-future
103 claim jordan-parallel
141 claim fixed-size-summary
145 claim heading-backward
165 claim not-parallel
169 claim decoupled
171 claim not-maximum-likelihood
171 claim true-value-next
232 claim bptt-needed
232 claim both-needed
234 claim errors-grow
234 claim open-loop
234 claim mix-both
238 claim empty-section
""",
}


def identifiers() -> list[str]:
    """All entries as the map names them: `001 eq 10.1`."""
    lines = ((text, line) for text, entries in TEXTS.items() for line in entries.strip().splitlines())
    return [f"{text} {line.split(' ', 1)[1]}" for text, line in lines]
