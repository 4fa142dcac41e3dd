package fleet

import "strings"

// stopped says what did not work when a workflow ends at a step.
var stopped = map[string]string{
	StepPowerOn:   "Could not power the machine on",
	StepDHCP:      "Could not boot it from the network",
	StepTFTP:      "Could not give it its boot file",
	StepScript:    "Could not give it its boot script",
	StepKernel:    "Could not load kernel and RAM disk",
	StepJoin:      "The RAM disk could not join",
	StepInventory: "Could not read its hardware",
	StepWipe:      "Could not wipe its disks",
	StepDiag:      "The hardware test did not pass",
	StepDeploy:    "Could not write the image",
	StepKexec:     "Could not start the installed system",
	StepNodeJoin:  "The installed system could not join",
	StepActive:    "The node did not report its hardware",
}

// untouched is how an agent begins a message when it wrote to no disk.
const untouched = "nothing was written: "

// told is a failure in words for people: a workflow writes down the operation that ended it, such as a command's kind, and the
// message of an agent, which begins with its own name for the operation.
func (x *Failure) told() *Failure {
	if x == nil {
		return nil
	}
	out := *x
	if words := stopped[x.Step]; words != "" {
		out.What = words
	}
	for _, operation := range []string{"wipe: ", "deploy: "} {
		out.Why = strings.TrimPrefix(out.Why, operation)
	}
	if why, ok := strings.CutPrefix(out.Why, untouched); ok {
		out.Why = strings.TrimSuffix(why, ".") + ". Nothing was written"
	}
	return &out
}
