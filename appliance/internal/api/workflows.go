package api

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	"firstlight/appliance/internal/executor"
	"firstlight/appliance/internal/fault"
	"firstlight/appliance/internal/fleet"
	"firstlight/appliance/internal/planner"
)

// order reads an order to provision. What is protected is refused here already; the executor and the planner refuse it again.
func (s *Server) order(r *http.Request, op string) (o executor.Order, err error) {
	name := r.PathValue("name")
	var in Provision
	if err := decode(r, &in); err != nil {
		return o, fault.New(fault.Usage, op, name, err, "use the firstlight command")
	}
	m, err := s.show(r, op)
	if err != nil {
		return o, err
	}
	if m.Protected != nil {
		return o, workflowFault(op, name, fmt.Errorf("%w: it is %s", executor.ErrProtected, m.Protected))
	}
	img, err := s.cfg.Images.Get(r.Context(), in.Image)
	if err != nil {
		return o, imageFault(op, name, err)
	}
	sum, err := img.Digest()
	if err != nil {
		return o, imageFault(op, name, err)
	}
	return executor.Order{Machine: name, Image: planner.Image{Name: img.Name, ManifestSHA256: sum, RawSize: img.RawSize},
		PauseAfter: in.PauseAfter, Reinstall: in.Reinstall, By: by(r)}, nil
}

func (s *Server) provision(r *http.Request) (any, error) {
	const op = "provision"
	o, err := s.order(r, op)
	if err != nil {
		return nil, err
	}
	if _, err := s.cfg.Workflows.Provision(r.Context(), o); err != nil {
		return nil, workflowFault(op, o.Machine, err)
	}
	return s.show(r, op)
}

func (s *Server) preview(r *http.Request) (any, error) {
	const op = "provision"
	o, err := s.order(r, op)
	if err != nil {
		return nil, err
	}
	p, err := s.cfg.Workflows.DryRun(r.Context(), o)
	if err != nil {
		return nil, workflowFault(op, o.Machine, err)
	}
	return p, nil
}

func (s *Server) resume(r *http.Request) (any, error) {
	const op = "resume"
	name := r.PathValue("name")
	if _, err := s.show(r, op); err != nil {
		return nil, err
	}
	if err := s.cfg.Workflows.Resume(r.Context(), name, by(r)); err != nil {
		return nil, workflowFault(op, name, err)
	}
	return s.show(r, op)
}

// cancel answers when the workflow is over, or when the server ends. The order stands also when nobody waits for that.
func (s *Server) cancel(r *http.Request) (any, error) {
	const op = "cancel"
	name := r.PathValue("name")
	why, err := reason(r, op, name)
	if err != nil {
		return nil, err
	}
	if _, err := s.show(r, op); err != nil {
		return nil, err
	}
	ctx, stop := context.WithTimeout(r.Context(), cancelTimeout)
	defer stop()
	defer context.AfterFunc(s.ending, stop)()
	err = s.cfg.Workflows.Cancel(ctx, name, by(r), why)
	if err != nil && !errors.Is(err, context.DeadlineExceeded) && s.ending.Err() == nil {
		return nil, workflowFault(op, name, err)
	}
	return s.show(r, op)
}

func reason(r *http.Request, op, name string) (string, error) {
	var in Reason
	if err := decode(r, &in); err != nil {
		return "", fault.New(fault.Usage, op, name, err, "use the firstlight command")
	}
	if len(in.Reason) > maxReason {
		return "", fault.New(fault.Invalid, op, name, fmt.Errorf("reason of %d bytes, want at most %d", len(in.Reason), maxReason), "say it shorter")
	}
	return in.Reason, nil
}

func (s *Server) stopAll(r *http.Request) (any, error) {
	const op = "stop all"
	why, err := reason(r, op, "")
	if err != nil {
		return nil, err
	}
	frozen, err := s.cfg.Workflows.StopAll(r.Context(), by(r), why)
	if err != nil {
		return nil, workflowFault(op, "", err)
	}
	stop, err := s.cfg.Fleet.Stop(r.Context())
	if err != nil {
		return nil, fault.Of(err, op, "")
	}
	text := "everything was stopped by " + by(r)
	if why != "" {
		text += ": " + why
	}
	s.emit(r, fleet.Event{Kind: "stopped.all", Fields: map[string]string{"workflows": fmt.Sprint(len(frozen))}, Message: text})
	return Stopped{Stop: stop, Workflows: frozen}, nil
}

func (s *Server) resumeAll(r *http.Request) (any, error) {
	const op = "resume all"
	thawed, err := s.cfg.Workflows.ResumeAll(r.Context(), by(r))
	if err != nil {
		return nil, workflowFault(op, "", err)
	}
	s.emit(r, fleet.Event{Kind: "resumed.all", Fields: map[string]string{"workflows": fmt.Sprint(len(thawed))}, Message: "everything goes on, by " + by(r)})
	return Stopped{Workflows: thawed}, nil
}

func (s *Server) protect(r *http.Request) (any, error) {
	const op = "protect machine"
	name := r.PathValue("name")
	why, err := reason(r, op, name)
	if err != nil {
		return nil, err
	}
	rec, err := s.cfg.Fleet.Protect(r.Context(), name, by(r), why, s.cfg.Now())
	if err != nil {
		return nil, machineFault(op, name, err)
	}
	s.emit(r, fleet.Event{Machine: rec.Name, NodeID: rec.NodeID, Kind: "machine.protected", Message: "machine " + name + " is " + rec.Protected.String()})
	return s.show(r, op)
}

func (s *Server) unprotect(r *http.Request) (any, error) {
	const op = "unprotect machine"
	name := r.PathValue("name")
	rec, err := s.cfg.Fleet.Unprotect(r.Context(), name)
	if errors.Is(err, fleet.ErrNotProtected) {
		return nil, fault.New(fault.Conflict, op, name, err, "see `firstlight machine show "+name+"`")
	}
	if err != nil {
		return nil, machineFault(op, name, err)
	}
	s.emit(r, fleet.Event{Machine: rec.Name, NodeID: rec.NodeID, Kind: "machine.unprotected", Message: "machine " + name + " is not protected any more, by " + by(r)})
	return s.show(r, op)
}
