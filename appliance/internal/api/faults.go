package api

import (
	"context"
	"errors"

	"firstlight/appliance/internal/executor"
	"firstlight/appliance/internal/fault"
	"firstlight/appliance/internal/fleet"
	"firstlight/appliance/internal/images"
	"firstlight/appliance/internal/store"
)

// machineFault words what went wrong with a machine's record.
func machineFault(op, name string, err error) error {
	if errors.Is(err, fleet.ErrUnknown) {
		return fault.New(fault.NotFound, op, name, errors.New("there is no machine of this name"),
			"see `firstlight machine list` for the names, or add it with `firstlight machine add`")
	}
	return fault.Of(err, op, name)
}

// addFault words why a machine could not be added: what is not the store's trouble is a value that is wrong or taken.
func addFault(op, name string, err error) error {
	switch {
	case troubled(err):
		return fault.Of(err, op, name)
	case errors.Is(err, fleet.ErrTaken):
		return fault.New(fault.Conflict, op, name, err, "see that machine with `firstlight machine list`, and choose another value or correct the other record")
	case errors.Is(err, fleet.ErrUnknown):
		return fault.New(fault.NotFound, op, name, err, "see `firstlight discovered` for the names")
	case errors.Is(err, fleet.ErrOpen):
		return fault.New(fault.Conflict, op, name, err, "cancel it with `firstlight cancel "+name+"`, or wait for its end")
	}
	return fault.New(fault.Invalid, op, name, err, "correct the value and send it again")
}

func imageFault(op, name string, err error) error {
	switch {
	case errors.Is(err, images.ErrUnknown):
		return fault.New(fault.NotFound, op, name, err, "see `firstlight image list` for the names, or add it with `firstlight image add`")
	case errors.Is(err, images.ErrExists):
		return fault.New(fault.Conflict, op, name, err, "add it under another name: workflows refer to images by content")
	case errors.Is(err, images.ErrNoRoom):
		return fault.New(fault.Conflict, op, name, err, "make room: remove images that nobody needs, or give the data directory a larger volume; then go on, nothing is sent twice")
	case errors.Is(err, images.ErrIncomplete):
		return fault.New(fault.Conflict, op, name, err, "run the command again: it sends what is missing")
	case errors.Is(err, images.ErrInvalid):
		return fault.New(fault.Invalid, op, name, err, "make it again with `imagebuild pack` and give that command's output directory")
	}
	return fault.Of(err, op, name)
}

// workflowFault words why a workflow did not start or go on.
func workflowFault(op, name string, err error) error {
	see := "see `firstlight machine show " + name + "` for what it does now"
	switch {
	case errors.Is(err, executor.ErrBusy):
		return fault.New(fault.Conflict, op, name, err, "wait for it to end; "+see)
	case errors.Is(err, executor.ErrProtected):
		return fault.New(fault.Conflict, op, name, err, "nothing wipes a protected machine; when it may be wiped after all: firstlight machine unprotect "+name)
	case errors.Is(err, executor.ErrInUse):
		return fault.New(fault.Conflict, op, name, err, "when it is to be wiped and installed again, say so with --reinstall")
	case errors.Is(err, executor.ErrNotEnrolled):
		return fault.New(fault.Conflict, op, name, err, "enrol it with `firstlight machine add NAME --from "+name+"`")
	case errors.Is(err, executor.ErrStoppedAll):
		return fault.New(fault.Conflict, op, name, err, "find out why; then let everything go on with `firstlight resume-all`")
	case errors.Is(err, executor.ErrNothingToCancel):
		return fault.New(fault.Conflict, op, name, err, see)
	case errors.Is(err, executor.ErrNotPaused):
		return fault.New(fault.Conflict, op, name, err, see)
	case errors.Is(err, executor.ErrStopped):
		return fault.New(fault.Unavailable, op, name, err, "the appliance is ending: start it and try again")
	case troubled(err):
		return fault.Of(err, op, name)
	}
	return fault.New(fault.Invalid, op, name, err, "correct the order and send it again")
}

// troubled says that the store or the time was the trouble, not what was asked.
func troubled(err error) bool {
	return errors.Is(err, store.ErrClosed) || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
}
