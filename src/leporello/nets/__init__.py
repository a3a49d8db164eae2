"""The networks: modules that run a cell over sequences, and what can be done with them.

recurrent        `Recurrent`, which runs a cell; summary, stack, bidirectional, feedback, record: others
generate         a network that reads what it writes; stream: windows of an endless sequence; online: one step at a time
check_gradients  beside plain_loop, the loop in Python; non_finite: where a NaN began
torch_nn, files  from and to torch.nn, and safetensors; fold: the Loop of a cell or network
export           files that run without Python
"""
